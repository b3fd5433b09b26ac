"""Do adversarial views make features more robust? MoCo-v2 and HEXA-MoCo on the embedded digits, under attack.

    python benchmarks/robust_digits.py --work FOLDER --result FILE [--seeds 0 1 2]

The recipes of the demo, unchanged, 40 epochs each, so HEXA-MoCo trains for longer (`cpu_seconds`); `longer` is MoCo-v2
for 70 epochs, which is HEXA-MoCo's time by counting passes (1.75). The attack is the demo's: ten steps from one random
start, on the 450 test images, through backbone and probe. Its strengths were chosen on held-out training images. A row
is written as soon as it exists, and rows that FILE has are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from from_weights import COMMON

from hexa import recipes
from hexa.evaluation import evaluate
from hexa.experiment import override
from hexa.runtime.packages import commit
from hexa.session.run import pretrain, resume

ARMS = {"plain": ("digits-moco-v2", 40), "adversarial": ("digits-hexa-moco", 40), "longer": ("digits-moco-v2", 70)}
ATTACK = {"epsilons": [4, 8, 16], "steps": 10, "restarts": 1}


def main() -> None:
    """Every row that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    given = parser.parse_args()
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    for seed in given.seeds:
        for arm in given.arms:
            if any((row["arm"], row["seed"]) == (arm, seed) for row in stored["rows"]):
                continue
            recipe, epochs = ARMS[arm]
            run, begun = given.work / f"{arm}-{seed}", time.process_time()
            row = {"arm": arm, "seed": seed, "epochs": epochs, "commit": commit()}
            if (run / "config.yaml").exists():
                _ = resume(run)
            else:
                _ = pretrain(override(recipes.get(recipe), COMMON | {"seed": seed, "epochs": epochs}), run)
                row["cpu_seconds"] = time.process_time() - begun
            metrics = evaluate("robust", str(run), "digits", **ATTACK)["metrics"]
            row["metrics"] = metrics | {"knn": evaluate("knn", str(run), "digits")["metrics"]["top1"]}
            stored["rows"].append(row)
            given.result.write_text(json.dumps(stored, indent=1) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
