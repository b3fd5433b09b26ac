"""A few labels and many images: does a self-supervised start help, and may other hard views replace RandAugment?

    python benchmarks/semi_supervised.py digits --work FOLDER --result FILE [--seeds 0 1 2]
    python benchmarks/semi_supervised.py parquet:PATH/cifar10 --work FOLDER --result FILE [--seeds 0 1 2]

FixMatch of `hexa evaluate semi-supervised` from random weights and from MoCo-v2's (one run, on all training images). A
seed draws labels, views and the random weights. Trainings are a thousandth of the published one (2^20 steps of 64 and
448 images) or shorter: not to be compared with published numbers. `supervised` is the same training without the second
term, `probe` a softmax regression on the features of the start, with the same labels.

Digits: the demo's recipe on a narrower network; no rate was searched. CIFAR-10: from MoCo-v2's weights every arm takes
the rate that is best on held-out training images with 250 labels of a seed of its own; from random weights the
published one.
A row is written as soon as it exists, and rows that FILE has are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from from_weights import COMMON, NINE_LAYERS

from hexa import recipes
from hexa.evaluation import evaluate
from hexa.recipes.experiment import override
from hexa.run.run import pretrain, resume
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone, random_backbone

ADVERSARIAL = {"kind": "adversarial", "epsilon": 8.0, "step_size": 8.0}
ARMS: dict[str, dict[str, Any]] = {
    "supervised": {"unlabelled_weight": 0.0},
    "fixmatch": {},
    "adversarial instead": {"strong": "weak", "hard": [ADVERSARIAL]},
    "probe": {},
    "fixmatch + adversarial": {"hard": [ADVERSARIAL]},
    "cutmix instead": {"strong": "weak", "hard": ["cutmix"]},
    "weak": {"strong": "weak"},
}


@dataclass
class Case:
    """A data set, the run that starts on it, and the trainings."""

    recipe: str
    changes: dict[str, Any]
    labels: tuple[int, ...]
    training: dict[str, Any]
    arms: tuple[str, ...] = tuple(ARMS)
    rates: tuple[float, ...] = ()


CASES = {
    "digits": Case(
        "digits-moco-v2",
        # the recipe as it was until 2026-11-25
        {"network.widths": [16, 32, 64], "epochs": 40, "method.queue_size": 1024}
        | {"optimizer.name": "sgd", "optimizer.learning_rate": 0.03},
        (20, 40),
        {
            "steps": 200,
            "labelled_batch": 8,
            "mirrored": False,
            "device": "cpu",
            "precision": "fp32",
        },
    ),
    "cifar10": Case(
        "cifar10-moco-v2+small",
        NINE_LAYERS | {"training.precision": "bf16"},
        (40, 250),
        {"steps": 1000, "labelled_batch": 16, "device": "cpu", "precision": "bf16"},
        ("supervised", "fixmatch", "adversarial instead", "probe"),
        (0.003, 0.01, 0.03),
    ),
}


class Rows:
    """The rows of a file, each made once."""

    def __init__(self, path: Path, training: dict[str, Any]) -> None:
        self.path = path
        self.stored = (
            json.loads(path.read_text()) if path.exists() else {"training": training, "rows": []}
        )

    def row(
        self, key: dict[str, Any], data: str, backbone: Any, how: dict[str, Any]
    ) -> dict[str, Any]:
        """That of the key, stored or from an evaluation."""
        for row in self.stored["rows"]:
            if key.items() <= row.items() and row.keys() & {"held_out"} == key.keys() & {
                "held_out"
            }:
                return dict(row)
        begun = time.process_time()
        made = evaluate(
            how.pop("protocol", "semi-supervised"), backbone, data, seed=key["seed"], **how
        )
        row = key | {"protocol": made["protocol"], "top1": made["metrics"]["top1"], **provenance()}
        self.stored["rows"].append(row | {"cpu_seconds": round(time.process_time() - begun, 1)})
        self.path.write_text(json.dumps(self.stored, indent=1) + "\n")
        print(self.stored["rows"][-1], flush=True)
        return row


def main() -> None:
    """Every row that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", metavar="SOURCE")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES["digits" if given.data == "digits" else "cifar10"]
    changes = COMMON | case.changes | {"training.device": "cpu", "data": given.data}
    experiment = override(recipes.get(case.recipe), changes)
    run = given.work / "start"
    _ = resume(run) if (run / "config.yaml").exists() else pretrain(experiment, run)
    rows = Rows(given.result, case.training)

    def how(arm: str, labels: int, rate: float | None) -> dict[str, Any]:
        if arm == "probe":
            return {
                "protocol": "probe",
                "shots": labels // 10,
                "draws": 1,
                "device": "cpu",
                "precision": "fp32",
            }
        rates = {} if rate is None else {"learning_rate": rate}
        return {"learner": "fixmatch", "labels": labels, **case.training, **ARMS[arm], **rates}

    def searched(arm: str) -> float | None:
        if arm == "probe" or not case.rates:
            return None
        key = {
            "arm": arm,
            "start": "moco-v2",
            "labels": max(case.labels),
            "seed": 100,
            "held_out": True,
        }
        scores = {
            rate: rows.row(
                key | {"rate": rate},
                given.data,
                load_backbone(run),
                how(arm, key["labels"], rate) | {"holdout": 0.1},
            )["top1"]
            for rate in case.rates
        }
        return max(scores, key=lambda rate: scores[rate])

    random = {s: random_backbone(experiment.network, experiment.views.size, s) for s in given.seeds}
    for start in ("moco-v2", "random"):
        rates = {arm: searched(arm) if start == "moco-v2" else None for arm in case.arms}
        for labels, seed, arm in itertools.product(case.labels, given.seeds, case.arms):
            key = {"arm": arm, "start": start, "labels": labels, "seed": seed}
            backbone = load_backbone(run) if start == "moco-v2" else random[seed]
            _ = rows.row(key, given.data, backbone, how(arm, labels, rates[arm]))


if __name__ == "__main__":
    main()
