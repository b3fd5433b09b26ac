"""How often do the intervals of `hexa compare` hold the true difference, and which differences do they show?

    python benchmarks/coverage.py OUT.json [--comparisons 300] [--classes 2 20] [--labelled 100 300 1000] [--group 1 4 0]

A population of features: every class has two clusters, and two backbones see the same images with noise that they partly
share, one of them perhaps with a stronger signal. Each comparison draws labelled images anew and goes through `Judge` and
`difference`. The truth is the mean difference over all comparisons of a row, 0 if the backbones are equal: a cross-validated
difference has that expectation. Groups of four images share their class and half of their noise. Group 0: groups of
unequal size, four with a fifth of the images each and the others of one image, share half of their noise.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hexa.comparison.labelled import DECIDING, Judge, difference
from hexa.runtime.packages import processor_name, provenance

#: Of all draws; the factors of intervals were chosen on others.
SEED = 2
#: Numbers of a feature.
WIDTH = 16
#: Share of the noise's variance that both backbones see.
SHARED = 0.8
#: Images of a group, and the share of the noise's variance that they share.
GROUP = 4
ALIKE = 0.5
#: Stands for groups of unequal size, and the number of large groups among them.
UNEQUAL = 0
LARGE = 4
#: Strength of the signal by the number of classes.
STRENGTH = {2: 2.0, 20: 6.0}
#: Factors of the second backbone's signal by the number of classes, for about 0, 3 and 8 points of the linear probe.
GAINS = {2: (1.0, 1.13, 1.42), 20: (1.0, 1.055, 1.15)}
#: Labelled images from which on 8 points are no longer tried.
MANY = 1000


class Population:
    """Labelled images as two backbones see them."""

    def __init__(self, classes: int, gain: float, group: int = 1) -> None:
        generator = np.random.default_rng(classes)
        self.means = generator.normal(size=(classes, 2, WIDTH)) / WIDTH**0.5
        self.gain = gain
        self.group = group

    def sizes(self, count: int) -> list[int]:
        """Numbers of images of the groups."""
        if self.group != UNEQUAL:
            return [self.group] * (count // self.group)
        large = count // (LARGE + 1)
        return [large] * LARGE + [1] * (count - LARGE * large)

    def draw(
        self, count: int, generator: np.random.Generator
    ) -> tuple[list[Tensor], np.ndarray, np.ndarray | None]:
        """Features of both backbones, labels and groups of `count` images."""
        sizes = self.sizes(count)
        groups = np.repeat(np.arange(len(sizes)), sizes)
        # images of equal groups share class and cluster
        alike = np.arange(count) if self.group == UNEQUAL else groups
        number = alike[-1] + 1
        classes = len(self.means)
        labels = generator.permutation(np.arange(number) % classes)[alike]
        cluster = generator.integers(0, 2, number)[alike]

        def noise() -> np.ndarray:
            own = generator.normal(size=(count, WIDTH))
            if self.group == 1:
                return own
            common = generator.normal(size=(len(sizes), WIDTH))[groups]
            return (1 - ALIKE) ** 0.5 * own + ALIKE**0.5 * common

        signal = STRENGTH[classes] * self.means[labels, cluster]
        shared = SHARED**0.5 * noise()
        features = []
        for factor in (1.0, self.gain):
            seen = factor * signal + shared + (1 - SHARED) ** 0.5 * noise()
            features.append(torch.from_numpy(seen.astype(np.float32)))
        return features, labels, None if self.group == 1 else groups


def compared(
    population: Population, count: int, number: int
) -> dict[str, tuple[float, float, float]]:
    """By measure: the difference, half of its interval, and the standard deviation of an image's difference."""
    generator = np.random.default_rng([SEED, number, count])
    features, labels, groups = population.draw(count, generator)
    judge = Judge(labels, number, groups)
    first, second = (judge.scores(one) for one in features)
    found = {}
    for name, right in first.right.items():
        one = difference(first, second, name)
        found[name] = (one.points, one.half, float((second.right[name] - right).std()))
    return found


def rows(
    classes: int, count: int, gain: float, group: int, comparisons: int
) -> Iterator[dict[str, Any]]:
    """A row for each measure."""
    population = Population(classes, gain, group)
    found = [compared(population, count, number) for number in range(comparisons)]
    for name in found[0]:
        points, halves, deviation = np.array([one[name] for one in found]).T
        truth = 0.0 if gain == 1 else float(points.mean())
        yield {
            "classes": classes,
            "labelled": count,
            "group": group,
            "gain": gain,
            "measure": name,
            "decides": name == DECIDING,
            "comparisons": comparisons,
            "truth": truth,
            "std": float(points.std(ddof=1)),
            "deviation": float(deviation.mean()),
            "half": float(halves.mean()),
            "covered": float((abs(points - truth) <= halves).mean()),
            "better": float((points > halves).mean()),
            "worse": float((points < -halves).mean()),
        }


def main() -> None:
    """Simulate, print and write, a row after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--comparisons", type=int, default=300)
    parser.add_argument("--classes", type=int, nargs="+", default=(2, 20))
    parser.add_argument("--labelled", type=int, nargs="+", default=(100, 300, 1000))
    parser.add_argument(
        "--group", type=int, nargs="+", default=(1, GROUP, UNEQUAL), help="images of one"
    )
    given = parser.parse_args()
    made_by = {**provenance(), "device": processor_name(), "torch": torch.__version__}
    made: list[dict[str, Any]] = []
    for count, classes, group in itertools.product(given.labelled, given.classes, given.group):
        gains = GAINS[classes][: 2 if count >= MANY else None]
        for gain in gains if group == 1 else (1.0,):
            made += rows(classes, count, gain, group, given.comparisons)
            print(made[-1], flush=True)
            command = (
                f"python benchmarks/coverage.py {given.out.name} --comparisons {given.comparisons}"
            )
            command += f" --classes {' '.join(map(str, given.classes))}"
            command += f" --labelled {' '.join(map(str, given.labelled))}"
            command += f" --group {' '.join(map(str, given.group))}"
            result = {"command": command, **made_by, "rows": made}
            given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
