"""Few images, many epochs: 2,000 images of CIFAR-10, plain and with hard examples, at equal time and several lengths.

    python benchmarks/few_images.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE \\
        [--seeds 0 1 2] [--lengths 400 1600] [--arms plain +split +adversarial +cutmix]

Every arm is `cifar10-moco-v2+small` with modifiers, in bf16, its rate and all else unchanged: nothing is searched. A
length is the number of plain epochs (of 7 steps); the other arms get as many as take that time, by their costs
(`hexa benchmark`, the views included). `cpu_seconds` says what training took of one core, where it was not
interrupted. Scored once, at the end, on the test images: k-NN and probe on all 10,000, from all 50,000 labelled
training images, so that they measure the features rather than the labels; `few` is a probe of 1, 4 and 16 labels per
class, over five draws; `robust` the preset `pgd` (20 steps, two restarts) on 1,000 test images.
A row is written as soon as it exists, and rows that FILE has are not made again: ended anywhere, the command goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from from_weights import COMMON, subset

#: modifiers -> how many plain runs one of the same number of epochs takes
COSTS = {"plain": 1.0, "+split": 1.05, "+adversarial": 1.66, "+cutmix": 1.64}
#: what is measured: the protocol and its options
SCORES: dict[str, tuple[str, dict[str, Any]]] = {
    "knn": ("knn", {}),
    "probe": ("probe", {}),
    "few": ("probe", {"shots": [1, 4, 16]}),
    "robust": ("robust", {"images": 1000}),
}


def unit(arm: str, length: int, seed: int, data: str, scored: str, work: Path) -> dict[str, Any]:
    """One training and what it is worth."""
    from hexa import recipes
    from hexa.evaluation import evaluate
    from hexa.experiment import override
    from hexa.runtime.packages import commit
    from hexa.session.run import pretrain, resume

    modifiers = "" if arm == "plain" else arm
    run = work / f"moco{modifiers}-{length}-{seed}"
    epochs = round(length / COSTS[arm])
    row: dict[str, Any] = {"arm": arm, "length": length, "seed": seed, "epochs": epochs, "commit": commit()}
    fields = COMMON | {"data": data, "seed": seed, "epochs": epochs, "training.precision": "bf16"}
    begun, going_on = time.process_time(), (run / "config.yaml").exists()
    _ = resume(run) if going_on else pretrain(override(recipes.get(f"cifar10-moco-v2+small{modifiers}"), fields), run)
    if not going_on:
        row["cpu_seconds"] = time.process_time() - begun
    return row | {name: evaluate(p, str(run), scored, **how)["metrics"] for name, (p, how) in SCORES.items()}


def main() -> None:
    """Every unit that FILE lacks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[400, 1600])
    parser.add_argument("--arms", nargs="+", choices=COSTS, default=list(COSTS))
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    data = subset(given.cifar10, given.work / "cifar10")
    if given.unit:
        print(json.dumps(unit(*json.loads(given.unit), data, given.cifar10, given.work)))
        return
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    for length, seed, arm in itertools.product(given.lengths, given.seeds, given.arms):
        if any((row["arm"], row["length"], row["seed"]) == (arm, length, seed) for row in stored["rows"]):
            continue
        command = [sys.executable, *sys.argv, "--unit", json.dumps([arm, length, seed])]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True)
        stored["rows"].append(json.loads(done.stdout))
        given.result.write_text(json.dumps(stored, indent=1) + "\n")
        print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
