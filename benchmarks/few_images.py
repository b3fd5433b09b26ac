"""Few images, many epochs: 2,000 images of CIFAR-10, plain and with hard examples, at equal time.

    python benchmarks/few_images.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE [--seeds 0 1 2]

Every arm is `cifar10-moco-v2+small` with modifiers, its rate and all else unchanged: nothing is searched. Epochs are
such that every arm costs what 800 plain ones do (5,600 steps), by relative costs measured beforehand; `cpu_seconds`
says what training took of one core, where it was not interrupted. Scored once, at the end, on the 10,000 test images:
k-NN and probe see all 50,000 labelled training images, so that they measure the features rather than the labels. A row
is written as soon as it exists, and rows that FILE has are not made again: ended anywhere, the command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from from_weights import COMMON, subset

#: modifiers -> epochs
ARMS = {
    "": 800,
    "+split": 800,
    "+adversarial": 460,
    "+cutmix": 496,
}


def unit(arm: str, seed: int, data: str, scored: str, run: Path) -> dict[str, Any]:
    """One training and what it is worth."""
    from hexa import recipes
    from hexa.evaluation import evaluate
    from hexa.experiment import override
    from hexa.runtime.packages import commit
    from hexa.session.run import pretrain, resume

    row: dict[str, Any] = {"arm": arm, "seed": seed, "epochs": ARMS[arm], "commit": commit()}
    fields = COMMON | {"data": data, "seed": seed, "epochs": ARMS[arm]}
    begun, going_on = time.process_time(), (run / "config.yaml").exists()
    _ = resume(run) if going_on else pretrain(override(recipes.get(f"cifar10-moco-v2+small{arm}"), fields), run)
    if not going_on:
        row["cpu_seconds"] = time.process_time() - begun
    metrics = {p: evaluate(p, str(run), scored)["metrics"]["top1"] for p in ("knn", "probe")}
    return row | {"metrics": metrics}


def main() -> None:
    """Every unit that FILE lacks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    data = subset(given.cifar10, given.work / "cifar10")
    if given.unit:
        arm, seed = json.loads(given.unit)
        print(json.dumps(unit(arm, seed, data, given.cifar10, given.work / f"moco{arm}-{seed}")))
        return
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    for seed in given.seeds:
        for arm in given.arms:
            if any((row["arm"], row["seed"]) == (arm, seed) for row in stored["rows"]):
                continue
            command = [sys.executable, *sys.argv, "--unit", json.dumps([arm, seed])]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, check=True, capture_output=True)
            stored["rows"].append(json.loads(done.stdout))
            given.result.write_text(json.dumps(stored, indent=1) + "\n")
            print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
