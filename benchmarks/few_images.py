"""Few images, many epochs: 2,000 images of CIFAR-10, plain and with hard examples, at equal time and several lengths.

    python benchmarks/few_images.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE \\
        [--seeds 0 1 2] [--lengths 400 1600] [--arms plain +split +adversarial +cutmix] [--rates 0.03 0.06] [--search]
        [--precision bf16]

Every arm is a small recipe of CIFAR-10 with the changes that ARMS lists. All arms of a seed take one precision: fp32 on
processors without bf16. A length is the number of plain epochs (of 7 steps); the other arms get as many as take that
time, by their costs: of the first four by `hexa benchmark`, the views included; of the others by twelve epochs of each,
in processor time. `cpu_seconds` says what training took of one core, where it was not interrupted. Scored once, at the
end, on the test images: k-NN and probe on all 10,000, from all 50,000 labelled training images, so that they measure
the features rather than the labels; `few` is a probe of 1, 4 and 16 labels per class, over five draws; `robust` the
preset `pgd` (20 steps, two restarts) on 1,000 test images, and `corruptions` the fifteen kinds on the same. With
`--search` the images that are scored are a tenth of the 50,000 training images: k-NN from the others, and `robust` on
1,000 of them.
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

from from_weights import COMMON, narrow, subset
from made_by import made_by

_MOCO, _ATTACK = "cifar10-moco-v2+small", "hard_examples.adversarial"
_ATTACKED = f"{_MOCO}+adversarial"


def _epsilon(grey: float) -> dict[str, Any]:
    return {f"{_ATTACK}.epsilon": grey, f"{_ATTACK}.step_size": grey}


#: The terms are summed, with MoCo-v2's own head and temperature.
_PUBLISHED = {"objective.reduction": "sum", "method.head": "mlp", "method.temperature": 0.2}
#: arm -> its recipe, what is changed of it, and how many plain epochs one of its epochs takes
ARMS: dict[str, tuple[str, dict[str, Any], float]] = {
    "plain": (_MOCO, {}, 1.0),
    "+split": (f"{_MOCO}+split", {}, 1.05),
    "+adversarial": (_ATTACKED, {}, 1.66),
    "+cutmix": (f"{_MOCO}+cutmix", {}, 1.64),
    "+adversarial+cutmix": (f"{_ATTACKED}+cutmix", {}, 2.3),
    "+adversarial+late": (f"{_ATTACKED}+late", {}, 1.33),
    "from ¾": (_ATTACKED, {f"{_ATTACK}.start": 0.75}, 1.165),
    "from 0.9": (_ATTACKED, {f"{_ATTACK}.start": 0.9}, 1.066),
    "late, ε = 2": (f"{_ATTACKED}+late", _epsilon(2.0), 1.33),
    "late, ε = 4": (f"{_ATTACKED}+late", _epsilon(4.0), 1.33),
    "ε = ¼": (_ATTACKED, _epsilon(0.25), 1.66),
    "ε = ½": (_ATTACKED, _epsilon(0.5), 1.66),
    "from ¾, ε = ¼": (_ATTACKED, _epsilon(0.25) | {f"{_ATTACK}.start": 0.75}, 1.165),
    "from ¾, ε = ½": (_ATTACKED, _epsilon(0.5) | {f"{_ATTACK}.start": 0.75}, 1.165),
    "ε = 2": (_ATTACKED, _epsilon(2.0), 1.66),
    "ε = 4": (_ATTACKED, _epsilon(4.0), 1.66),
    "α₁ = ¼": (_ATTACKED, {f"{_ATTACK}.weight": 0.25}, 1.66),
    "α₁ = ½": (_ATTACKED, {f"{_ATTACK}.weight": 0.5}, 1.66),
    "α₁ = 2": (_ATTACKED, {f"{_ATTACK}.weight": 2.0}, 1.66),
    "SimCLR": ("cifar10-simclr+small", {}, 1.23),
    "SimCLR+adversarial": ("cifar10-simclr+small+adversarial", {}, 2.37),
    "DeepCluster-v2": ("cifar10-deepcluster-v2+small", {}, 1.36),
    "DeepCluster-v2+adversarial": ("cifar10-deepcluster-v2+small+adversarial", {}, 2.6),
    "DeepCluster-v2+adversarial+cutmix": (
        "cifar10-deepcluster-v2+small+adversarial+cutmix",
        {},
        3.9,
    ),
    "as published": (_MOCO, _PUBLISHED, 1.0),
    "as published+adversarial": (_ATTACKED, _PUBLISHED, 1.66),
    "as published+adversarial+cutmix": (f"{_ATTACKED}+cutmix", _PUBLISHED, 2.3),
}
#: what is measured: the protocol and its options
SCORES: dict[str, tuple[str, dict[str, Any]]] = {
    "knn": ("knn", {}),
    "probe": ("probe", {}),
    "few": ("probe", {"shots": [1, 4, 16]}),
    "robust": ("robust", {"preset": "pgd", "images": 1000}),
    "corruptions": ("robust", {"preset": "corruptions", "images": 1000}),
}


def unit(
    arm: str,
    length: int,
    seed: int,
    rate: float | None,
    search: bool,
    *,
    precision: str,
    data: str,
    scored: str,
    work: Path,
) -> dict[str, Any]:
    """One training and its scores: on the test images, or on held-out ones to search. rate: None is the recipe's."""
    from hexa import recipes
    from hexa.evaluation import evaluate
    from hexa.recipes.experiment import override
    from hexa.run.run import pretrain, resume

    recipe, changes, cost = ARMS[arm]
    run = work / "-".join(str(part) for part in (arm, length, seed, rate) if part is not None)
    epochs = round(length / cost)
    row: dict[str, Any] = {"arm": arm, "length": length, "seed": seed, "epochs": epochs}
    fields = COMMON | narrow(recipe)
    fields |= {
        "data": data,
        "seed": seed,
        "epochs": epochs,
        "training.precision": precision,
    } | changes
    if rate is not None:
        row["rate"] = fields["optimizer.learning_rate"] = rate

    def scores(asked: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        return {
            name: evaluate(protocol, str(run), scored, **how)["metrics"]
            for name, (protocol, how) in asked.items()
        }

    begun, going_on = time.process_time(), (run / "config.yaml").exists()
    _ = resume(run) if going_on else pretrain(override(recipes.get(recipe), fields), run)
    if not going_on:
        row["cpu_seconds"] = time.process_time() - begun
    row |= made_by(run)
    if search:
        asked = {
            name: (SCORES[name][0], SCORES[name][1] | {"holdout": 0.1})
            for name in ("knn", "robust")
        }
        return row | {"held_out": scores(asked)}
    return row | scores(SCORES)


def main() -> None:
    """Every unit that FILE lacks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[400, 1600])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS)[:4])
    parser.add_argument("--rates", type=float, nargs="+", default=[None])
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    data = subset(given.cifar10, given.work / "cifar10")
    if given.unit:
        where: dict[str, Any] = {"data": data, "scored": given.cifar10, "work": given.work}
        print(json.dumps(unit(*json.loads(given.unit), precision=given.precision, **where)))
        return
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    made = {
        (row["arm"], row["length"], row["seed"], row.get("rate"), "held_out" in row)
        for row in stored["rows"]
    }
    for length, seed, arm, rate in itertools.product(
        given.lengths, given.seeds, given.arms, given.rates
    ):
        key = (arm, length, seed, rate, given.search)
        if key in made:
            continue
        command = [sys.executable, *sys.argv, "--unit", json.dumps(key)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True)
        stored["rows"].append(json.loads(done.stdout))
        given.result.write_text(json.dumps(stored, indent=1) + "\n")
        print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
