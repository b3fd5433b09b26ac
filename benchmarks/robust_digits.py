"""Do adversarial views make features more robust? MoCo-v2 and HEXA-MoCo on the embedded digits, under attack.

    python benchmarks/robust_digits.py --work FOLDER --result FILE [--seeds 0 1 2]

The recipes of the demo, unchanged, 12 epochs each, so HEXA-MoCo trains for longer (`cpu_seconds`); `longer` is
MoCo-v2 for 17 epochs, which is HEXA-MoCo's time by counting passes (1.75 in the second half). In `from the start`
attacks do not wait for the second half. The attack is the demo's: ten steps from one random start, on the
450 test images, through backbone and probe. Its strengths were chosen on held-out training images. A row is written
as soon as it exists, and rows that FILE has are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from from_weights import COMMON
from made_by import made_by

from hexa import recipes
from hexa.evaluation import evaluate
from hexa.recipes.experiment import override
from hexa.run.run import pretrain, resume

#: recipe, epochs, and what is changed of it
ARMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "plain": ("digits-moco-v2", 12, {}),
    "longer": ("digits-moco-v2", 17, {}),
    "adversarial": ("digits-hexa-moco", 12, {}),
    "from the start": ("digits-hexa-moco", 12, {"hard_examples.adversarial.start": 0.0}),
}
ATTACK = {"preset": "pgd", "epsilons": [4, 8, 16], "steps": 10, "restarts": 1}


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
            recipe, epochs, changes = ARMS[arm]
            run, begun = given.work / f"{arm}-{seed}", time.process_time()
            row = {"arm": arm, "seed": seed, "epochs": epochs}
            if (run / "config.yaml").exists():
                _ = resume(run)
            else:
                _ = pretrain(
                    override(
                        recipes.get(recipe), COMMON | changes | {"seed": seed, "epochs": epochs}
                    ),
                    run,
                )
                row["cpu_seconds"] = time.process_time() - begun
            metrics = evaluate("robust", str(run), "digits", **ATTACK)["metrics"]
            row |= made_by(run)
            row["metrics"] = metrics | {
                "knn": evaluate("knn", str(run), "digits")["metrics"]["top1"]
            }
            stored["rows"].append(row)
            given.result.write_text(json.dumps(stored, indent=1) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
