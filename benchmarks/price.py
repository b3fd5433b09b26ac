"""By which estimate of the clean accuracy that is lost does `hexa harden` keep to its price?

    python benchmarks/price.py WEIGHTS OUT.json RUN=LABELLED,TEST [RUN=LABELLED,TEST …] [--size 160] [--draws 8]

RUN: a folder of `hexa harden`, whose last weights are `backbone.safetensors`. Its labelled images of both sources are
pooled; of every draw half of them judge, as the command does, and the others tell the truth: the probe of the judging
half on them. States are shares of the way from WEIGHTS to the run's. For each estimate: the share that halving picks,
and what it costs in truth.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hexa.adaptation.harden import HALVINGS, between, halved
from hexa.comparison.extraction import Extraction, features_of
from hexa.comparison.labelled import NEIGHBOURS, Judge, labels_of
from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.protocols.probe import fit_probe
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone

SHARES = [share / 2**HALVINGS for share in range(2**HALVINGS + 1)]
#: Estimates of what is lost, of the differences by k-NN and probe.
RULES: dict[str, Callable[[float, float], float]] = {
    "probe": lambda nearest, probe: probe,
    "mean": lambda nearest, probe: (nearest + probe) / 2,
    "larger": max,
}
PRICES = (0.5, 1.0, 2.0)


def further(features: torch.Tensor, labels: np.ndarray, mine: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Accuracy in percent by k-NN and by a probe of `mine` on `others`."""
    y, classes = torch.from_numpy(labels), int(labels.max()) + 1
    votes = knn_classify(features[mine], y[mine], features[others], NEIGHBOURS, num_classes=classes)
    scores = fit_probe(features[mine], y[mine], classes).scores(features[others])
    nearest, probe = (100 * float((one.argmax(1) == y[others]).float().mean()) for one in (votes, scores))
    return nearest, probe


def beyond(lost: NDArray[np.float64], rule: Callable[[float, float], float], price: float, share: float) -> bool:
    """Whether the state at this share costs more than the price, by the rule's estimate."""
    return rule(*lost[SHARES.index(share), :2]) > price


def main() -> None:
    """Every run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+")
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
            row["picked"] = {}
            for name, rule in RULES.items():
                for price in PRICES:
                    exceeds = functools.partial(beyond, lost, rule, price)
                    row["picked"][f"{name} {price:g}"] = halved(exceeds) if exceeds(1.0) else 1.0
            stored["rows"].append(row)
        stored |= provenance()
        given.out.write_text(json.dumps(stored, indent=1) + "\n")
    for name in RULES:
        for price in PRICES:
            picked = [row["picked"][f"{name} {price:g}"] for row in stored["rows"]]
            truth = np.array([row["lost"][SHARES.index(p)][2:] for row, p in zip(stored["rows"], picked, strict=True)])
            print(
                name,
                price,
                "share",
                np.mean(picked).round(3),
                "lost by k-NN, probe",
                truth.mean(0).round(2),
                "over price + 1",
                (truth[:, 1] > price + 1).mean().round(2),
            )


if __name__ == "__main__":
    main()
