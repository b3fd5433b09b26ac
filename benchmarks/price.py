"""By which rule does `hexa harden` keep to its price?

    python benchmarks/price.py WEIGHTS OUT.json [RUN=LABELLED,TEST …] [--size 160] [--draws 8]

RUN: a folder of `hexa harden`, whose last weights are `backbone.safetensors`. Its labelled images of both sources are
pooled; of every draw half of them judge, as the command does, and the others tell the truth: k-NN and the probe of the
judging half on them. States are shares of the way from WEIGHTS to the run's; what is lost between two of them is
interpolated. For each rule and price: the share that it picks, and what that costs in truth. Without a RUN the rules
are applied again to the rows that OUT.json has.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hexa.adaptation.harden_verdict import at_price, between
from hexa.adaptation.robustness import Side
from hexa.comparison.extraction import Extraction, features_of
from hexa.comparison.labelled import (
    DECIDING,
    MEASURES,
    NEIGHBOURS,
    Difference,
    Judge,
    labels_of,
    paired,
)
from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.protocols.probe import fit_probe
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone

SHARES = [share / 8 for share in range(9)]
PRICES = (1.0, 2.0)
#: What rows tell of each share: points lost by the judging half, and half of their 95 % interval.
JUDGED = ("points", "half")

Cost = Callable[[float], Difference]


def halved(price: float, cost: Cost) -> float:
    """The largest share that keeps to the price, where the line is halved four times: the rule until 2026-11-27."""
    least, most = 0.0, 1.0
    for _ in range(4 * (cost(1.0).points > price)):
        middle = (least + most) / 2
        least, most = (least, middle) if cost(middle).points > price else (middle, most)
    return least or most


def squared(price: float, cost: Cost, errors: float = 0.0) -> float:
    """By the square of the way, to what the result loses with so many standard errors on top: without, the rule."""
    return at_price(
        price, lambda share: cost(share).points + (share == 1.0) * errors / 2 * cost(share).half
    )


RULES: dict[str, Callable[[float, Cost], float]] = {
    "halving": halved,
    "the square": squared,
    "the square, and a standard error": functools.partial(squared, errors=1),
    "the square, and two": functools.partial(squared, errors=2),
}


def applied(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rule picks at each price, and the mean of k-NN and probe that is lost there in truth, for each run."""
    found = []
    runs = dict.fromkeys(row["run"] for row in rows)
    for run, price, (name, pick) in itertools.product(runs, PRICES, RULES.items()):
        shares, lost = [], []
        for row in (row for row in rows if row["run"] == run):
            between = functools.partial(np.interp, xp=row["shares"])
            share = pick(
                price,
                lambda at, row=row, x=between: Difference(
                    *(float(x(at, fp=row[n])) for n in JUDGED)
                ),
            )  # type: ignore[misc]
            shares.append(share)
            lost.append(float(between(share, fp=row["truth"])))
        one = {
            "run": run,
            "rule": name,
            "price": price,
            "share": np.mean(shares),
            "lost": np.mean(lost),
        }
        found.append(one | {"worst": max(lost), "deviation": np.std(lost)})
    return [
        {name: x if isinstance(x, str) else round(float(x), 3) for name, x in one.items()}
        for one in found
    ]


def further(
    features: torch.Tensor, labels: np.ndarray, mine: np.ndarray, others: np.ndarray
) -> float:
    """Accuracy in percent of `mine` on `others`, the mean by k-NN and by a probe."""
    y, classes = torch.from_numpy(labels), int(labels.max()) + 1
    votes = knn_classify(features[mine], y[mine], features[others], NEIGHBOURS, num_classes=classes)
    scores = fit_probe(features[mine], y[mine], classes).scores(features[others])
    return float(
        np.mean(
            [100 * float((one.argmax(1) == y[others]).float().mean()) for one in (votes, scores)]
        )
    )


def main() -> None:
    """Every run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--draws", type=int, default=8)
    given = parser.parse_args()
    stored = json.loads(given.out.read_text()) if given.out.exists() else {"rows": []}
    start, how = load_backbone(given.weights), Extraction()
    for one in given.runs:
        run, _, names = one.partition("=")
        result = load_backbone(run)
        sources = [open_source(name, "train") for name in names.split(",")]
        if len({tuple(source.class_names or ()) for source in sources}) > 1:
            raise UserError(f"{names}: other classes")
        labels = np.concatenate([labels_of(source) for source in sources])
        features = {}
        for share in SHARES:
            network = between(start, result, share).prepared(size=given.size)
            features[share] = torch.cat(
                [features_of(network, x, how, torch.device("cpu"))[0] for x in sources]
            )
            print(Path(run).name, share, flush=True)
        for draw in range(given.draws):
            order = np.random.default_rng(draw).permutation(len(labels))
            mine, others = order[: len(order) // 2], order[len(order) // 2 :]
            judge = Judge(labels[mine], draw)
            sides = [Side.of(start, features[share][mine], judge) for share in SHARES]
            both = [np.mean([side.values[name] for name in MEASURES], axis=0) for side in sides]
            told = [paired(one, both[0], DECIDING) for one in both]
            truth = np.array([further(features[share], labels, mine, others) for share in SHARES])
            row = {"run": Path(run).name, "draw": draw, "shares": SHARES, "truth": truth[0] - truth}
            row |= {name: np.array([getattr(one, name) for one in told]) for name in JUDGED}
            stored["rows"].append(
                {
                    k: np.round(x, 3).tolist() if isinstance(x, np.ndarray) else x
                    for k, x in row.items()
                }
            )
        stored |= provenance()
        given.out.write_text(json.dumps(stored, indent=1) + "\n")
    given.out.write_text(json.dumps(stored | {"rules": applied(stored["rows"])}, indent=1) + "\n")


if __name__ == "__main__":
    main()
