"""Weights made robust without labels: the recipe `teacher` on 2,000 images of CIFAR-10, start beside result.

    OMP_NUM_THREADS=1 python benchmarks/harden.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE
        [--seeds 0 1 2] [--strengths 4] [--epochs 10] [--images 1000] [--fields objective.clean_fraction=1]

The start is EfficientNet-Lite0 (benchmarks/networks.py) at 64 pixels. Strengths are ε of the training's attack in grey
levels, with a step of ε from a random point. Figures are of a linear head on the frozen features, fitted to the
same 2,000 images with labels and tested on the first 4,000 of the test images, or on `--images` of them under attack:
PGD of 20 steps from one random point with each of two losses. `cpu_seconds` is what the training took of one core,
where it was not interrupted; `--fields` change the recipe, and name the arm. A row is written as soon as it exists, and
rows that FILE has are not made again: ended anywhere, the command goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import networks
from from_weights import COMMON, subset
from made_by import made_by

from hexa import recipes
from hexa.evaluation import evaluate
from hexa.recipes.experiment import override
from hexa.run.run import pretrain, resume
from hexa.run.start import begin_from_weights
from hexa.runtime.packages import provenance

SIZE, NEIGHBOURS = 64, 15
ATTACK = {"epsilons": [1, 2, 4], "steps": 20, "restarts": 1, "losses": ["cross-entropy", "margin"]}


def measured(backbone: str, data: str, images: int) -> dict[str, float]:
    """k-NN, the linear head as it is and under attack, in percent. Start and result see images resized alike."""
    how = {"size": SIZE, "crop": 1.0, "interpolation": "bicubic", "device": "cpu"}
    robust = evaluate("robust", backbone, data, images=images, **ATTACK, **how)
    head = evaluate("probe", backbone, data, **how)["metrics"]["top1"]
    knn = evaluate("knn", backbone, data, k=NEIGHBOURS, **how)["metrics"]["top1"]
    return {"knn": knn, "probe": head} | robust["metrics"]


def main() -> None:
    """Every row that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--strengths", type=float, nargs="+", default=[4.0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--fields", nargs="*", default=[], metavar="PATH=VALUE")
    given = parser.parse_args()
    data = subset(given.cifar10, given.work / "cifar10")
    changes = dict(field.split("=", 1) for field in given.fields)
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}

    def add(key: dict[str, Any], row: dict[str, Any], backbone: str) -> None:
        stored["rows"].append({**key, **row, "metrics": measured(backbone, data, given.images)})
        given.result.write_text(json.dumps(stored, indent=1) + "\n")
        print(stored["rows"][-1], flush=True)

    def known(key: dict[str, Any]) -> bool:
        return any(key.items() <= row.items() for row in stored["rows"])

    if not known(start := {"arm": "start", "images": given.images}):
        add(start, provenance(), networks.weights())
    for seed in given.seeds:
        for strength in given.strengths:
            arm = " ".join([f"ε = {strength:g}", *given.fields])
            key = {"arm": arm, "seed": seed, "epochs": given.epochs, "images": given.images}
            if known(key):
                continue
            attack = {"epsilon": strength, "step_size": strength}
            fields = COMMON | {"data": data, "seed": seed, "epochs": given.epochs, "views.size": SIZE}
            fields |= {"start.weights": networks.weights(), "training.device": "cpu"}
            fields |= {f"hard_examples.adversarial.{name}": value for name, value in attack.items()} | changes
            run, row, begun = given.work / f"{arm}-{given.epochs}-{seed}", {}, time.process_time()
            if (run / "config.yaml").exists():
                _ = resume(run)
            else:
                made = begin_from_weights(override(recipes.get("teacher"), fields), fields)
                _ = pretrain(made, run)
                row["cpu_seconds"] = time.process_time() - begun
            add(key, row | made_by(run), str(run))


if __name__ == "__main__":
    main()
