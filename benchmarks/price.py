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
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hexa.adaptation.harden import at_price, between
from hexa.comparison.extraction import Extraction, features_of
from hexa.comparison.labelled import NEIGHBOURS, Judge, labels_of
from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.protocols.probe import fit_probe
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone

SHARES = [share / 16 for share in range(17)]
PRICES = (1.0, 2.0)

Cost = Callable[[float], float]


def halved(price: float, cost: Cost) -> float:
    """The largest share that keeps to the price, where the line is halved four times: the rule until 2026-11-27."""
    least, most = 0.0, 1.0
    for _ in range(4 * (cost(1.0) > price)):
        middle = (least + most) / 2
        least, most = (least, middle) if cost(middle) > price else (middle, most)
    return least or most


#: How the share is found, and what is lost of the differences by k-NN and by the probe, [..., 2].
RULES: dict[str, tuple[Callable[[float, Cost], float], Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "halving, by the probe": (halved, lambda lost: lost[..., 1]),
    "halving, by the mean of both": (halved, lambda lost: lost.mean(-1)),
    "halving, by the larger of both": (halved, lambda lost: lost.max(-1)),
    "the square, by the mean of both": (at_price, lambda lost: lost.mean(-1)),
}


def applied(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each rule picks at each price, and the mean of k-NN and probe that is lost there in truth."""
    found = []
    for name, (pick, estimate) in RULES.items():
        for price in PRICES:
            shares, lost = [], []
            for row in rows:
                measured = np.array(row["lost"])
                judged, truth = estimate(measured[:, :2]), measured[:, 2:].mean(1)
                share = pick(price, lambda at, x=row["shares"], y=judged: float(np.interp(at, x, y)))  # type: ignore[misc]
                shares.append(share)
                lost.append(float(np.interp(share, row["shares"], truth)))
            one = {"rule": name, "price": price, "share": np.mean(shares), "lost": np.mean(lost), "worst": max(lost)}
            found.append(one | {"deviation": np.std(lost), "dearer": 100 * np.mean(np.array(lost) > price + 1)})
    return [{name: x if isinstance(x, str) else round(float(x), 3) for name, x in one.items()} for one in found]


def further(features: torch.Tensor, labels: np.ndarray, mine: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Accuracy in percent by k-NN and by a probe of `mine` on `others`."""
    y, classes = torch.from_numpy(labels), int(labels.max()) + 1
    votes = knn_classify(features[mine], y[mine], features[others], NEIGHBOURS, num_classes=classes)
    scores = fit_probe(features[mine], y[mine], classes).scores(features[others])
    nearest, probe = (100 * float((one.argmax(1) == y[others]).float().mean()) for one in (votes, scores))
    return nearest, probe


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
            features[share] = torch.cat([features_of(network, x, how, torch.device("cpu"))[0] for x in sources])
            print(Path(run).name, share, flush=True)
        for draw in range(given.draws):
            order = np.random.default_rng(draw).permutation(len(labels))
            mine, others = order[: len(order) // 2], order[len(order) // 2 :]
            judge, found = Judge(labels[mine], draw), []
            for share in SHARES:
                scores = judge.scores(features[share][mine])
                judged = [scores.accuracy(name) for name in ("k-NN", "linear probe")]
                found.append((*judged, *further(features[share], labels, mine, others)))
            lost = np.array(found[0]) - np.array(found)
            row = {"run": Path(run).name, "draw": draw, "shares": SHARES, "lost": np.round(lost, 3).tolist()}
            stored["rows"].append(row)
        stored |= provenance()
        given.out.write_text(json.dumps(stored, indent=1) + "\n")
    for row in stored["rows"]:
        row.pop("picked", None)  # by an earlier version
    given.out.write_text(json.dumps(stored | {"rules": applied(stored["rows"])}, indent=1) + "\n")


if __name__ == "__main__":
    main()
