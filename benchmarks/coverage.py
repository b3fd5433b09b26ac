"""How often do the intervals of `hexa compare` hold the difference that further labelled images would show?

    python benchmarks/coverage.py WEIGHTS DATA#SPLIT OUT.json [--sizes 64 72] [--images 6000] [--labelled 150 400 1000]

One network at two image sizes is a pair of backbones. Labelled sets are drawn from many images, of every set the paired
difference and its interval; the mean over draws is the truth. Widths: 1.5 is the rule (Nadeau and Bengio), 1 the one
before it. `series`: of every image drawn come SERIES different ones, its features with noise, as of photographs taken
one after the other, judged as they are and as groups; the truth is the mean over draws of the latter. `some`: only
FEW of the images that are judged are compared, as `hexa harden` attacks a few; the truth is that of all of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison.labelled import DECIDING, Judge, labels_of, paired
from hexa.data import open_source
from hexa.data.sources.source import Subset
from hexa.evaluation.features import extract
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone

WIDTHS = (1.0, 1.25, 1.5)
SERIES, NOISE, FEW = 4, 0.7, 40
WAYS = ("", "some", "as they are", "grouped")
Pair = tuple[Tensor, Tensor]


def differences(
    features: Pair, labels: NDArray[np.int64], count: int, draws: int, way: str = ""
) -> Iterator[dict[str, tuple[float, float, float]]]:
    """Of each draw of `count` images, by measure: difference, half its interval at a width of 1, the rule's width."""
    series = way in WAYS[2:]
    for draw in range(draws):
        generator = np.random.default_rng(draw)
        rows, several = (
            generator.choice(len(labels), count // (SERIES if series else 1), replace=False),
            None,
        )
        if series:
            rows = np.repeat(rows, SERIES)
            several = np.unique(rows, return_inverse=True)[1] if way == "grouped" else None
        judge, scores = Judge(labels[rows], draw, several), []
        for one in features:
            x = one[rows]
            noise = torch.from_numpy(generator.normal(size=x.shape).astype(np.float32)) * (
                NOISE * x.std()
            )
            scores.append(judge.scores(x + noise if series else x))
        first, second = scores
        among = np.sort(generator.permutation(len(judge.judged))[: FEW if way == "some" else None])
        width, found = judge.width_of(judge.judged[among]), {}
        for name in DECIDING:
            sets = None if name not in first.groups else first.groups[name][among]
            found[name] = paired(first.right[name][among], second.right[name][among], groups=sets)
        yield {name: (one.points, one.half, width) for name, one in found.items()}


def main() -> None:
    """Extract, draw, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights")
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", type=int, nargs=2, default=(64, 72))
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--labelled", type=int, nargs="+", default=(150, 400, 1000))
    parser.add_argument("--draws", type=int, default=100)
    given = parser.parse_args()
    source = open_source(given.data)
    rows = np.sort(np.random.default_rng(0).permutation(len(source))[: given.images])
    images = Subset(source, rows)
    first, second = (
        extract(load_backbone(given.weights, size=size), images)[0] for size in given.sizes
    )
    table = []
    for count in given.labelled:
        ways = {
            way: list(differences((first, second), labels_of(images), count, given.draws, way))
            for way in WAYS
        }
        for way, found in ways.items():
            truths = ways[{"as they are": "grouped", "some": ""}.get(way, way)]
            for name in DECIDING:
                points, halves, rule = np.array([one[name] for one in found]).T
                truth = float(np.mean([one[name][0] for one in truths]))
                outside = {
                    f"{width:g}": float((abs(points - truth) > width * halves).mean())
                    for width in WIDTHS
                }
                outside |= {"rule": float((abs(points - truth) > rule * halves).mean())}
                spread = {
                    "truth": truth,
                    "std": float(points.std(ddof=1)),
                    "half": float(halves.mean()),
                }
                line = {
                    "labelled": count,
                    "series": way,
                    "measure": name,
                    "draws": given.draws,
                    **spread,
                }
                table.append({**line, "rule": float(rule.mean()), "outside": outside})
                print(table[-1], flush=True)
    sizes = " ".join(map(str, given.sizes))
    command = f"python benchmarks/coverage.py WEIGHTS DATA {given.out.name} --sizes {sizes} --images {given.images}"
    command += f" --labelled {' '.join(map(str, given.labelled))} --draws {given.draws}"
    given.out.write_text(
        json.dumps({"command": command, **provenance(), "rows": table}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
