"""The verdict of a comparison in words, and the differences between every two backbones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hexa.comparison import labelled
from hexa.comparison.labelled import DECIDING, MEASURES, Difference, Scores
from hexa.reporting.tables import Table
from hexa.weights.pretrained import Backbone


@dataclass(frozen=True)
class Side:
    """A backbone with its scores."""

    name: str
    """The backbone's name in tables and sentences."""
    backbone: Backbone
    """The network with its image size and normalisation."""
    features: Tensor
    """Features [N, D] of the images that are readable for all backbones."""
    scores: Scores | None = None
    """Scores on labelled images; None without labels."""

    @property
    def record(self) -> dict[str, Any]:
        """All numbers of the backbone, for JSON."""
        scores = self.scores
        return {
            "name": self.name,
            "size": self.size,
            "num_features": self.features.shape[1],
            "weights": self.backbone.content_hash(),
            "scores": {name: scores.accuracy(name) for name in MEASURES} if scores else {},
            "balanced_accuracy": {name: scores.balanced(name) for name in MEASURES}
            if scores
            else {},
        }

    @property
    def size(self) -> int:
        """Image size in pixels."""
        return self.backbone.image_size

    def reached(self, measure: str) -> float:
        """Return the accuracy in percent by a measure."""
        assert self.scores is not None
        return self.scores.accuracy(measure)


@dataclass(frozen=True)
class Pair:
    """The differences between two sides, which are given by position."""

    first: int
    second: int
    better: int
    """1 if the second is significantly better, −1 if it is significantly worse, else 0."""
    differences: Mapping[str, Difference]
    """Differences second − first in percentage points, by measure."""

    @property
    def record(self) -> dict[str, Any]:
        """All numbers of the pair, for JSON; a difference is a list of points and half of the interval."""
        differences = {
            name: [one.points, min(one.half, 100.0)] for name, one in self.differences.items()
        }
        return {**vars(self), "differences": differences}

    @property
    def winner(self) -> int | None:
        """Position of the better side; None if the difference is not significant."""
        return (self.second if self.better > 0 else self.first) if self.better else None


@dataclass(frozen=True)
class Verdict:
    """The verdict of a comparison.

    sentence: the verdict in words. pairs: the differences between every two sides.
    """

    best: int | None
    """Position of the side that is better than all others; None if no side is."""
    sentence: str
    pairs: tuple[Pair, ...]


def by_labels(sides: Sequence[Side], trials: int = 1) -> Verdict:
    """Return the verdict by the linear probe; intervals hold for all pairs and `trials` together.

    trials: number of states from which a side was chosen by the same labels.
    """
    count = trials * math.comb(len(sides), 2)
    pairs = []
    for (a, first), (b, second) in itertools.combinations(enumerate(sides), 2):
        mine = first.scores
        theirs = second.scores
        assert mine is not None
        assert theirs is not None
        differences = {name: labelled.difference(mine, theirs, name, count) for name in mine.right}
        pairs.append(Pair(a, b, differences[DECIDING].sign, differences))
    top = max(range(len(sides)), key=lambda place: sides[place].reached(DECIDING))
    against = {
        pair.first + pair.second - top: pair for pair in pairs if top in (pair.first, pair.second)
    }
    beaten = [place for place, pair in against.items() if pair.winner == top]
    rivals = [place for place in against if place not in beaten]
    named = rivals or beaten
    near = min(named, key=lambda place: abs(against[place].differences[DECIDING].points))
    nearest = against[near]
    names = _listed([sides[place].name for place in named])
    several = f"against {sides[near].name}: " if len(named) > 1 else ""
    scores = f"{several}{_scores(sides, nearest, top)}"
    if not rivals:
        said = f"{sides[top].name} is better than {names}: {scores}"
    elif len(sides) == 2:
        said = f"these labels show no significant difference: {_scores(sides, nearest, 1)}"
    else:
        said = f"{sides[top].name} is not significantly better than {names}: {scores}"
        if beaten:
            said += f"; it is better than {_listed([sides[place].name for place in beaten])}"
    return Verdict(None if rivals else top, said, tuple(pairs))


def table(sides: Sequence[Side], verdict: Verdict, names: Sequence[str] | None = None) -> Table:
    """Return a table with a row for each measure: name with an arrow for the better direction, and all sides.

    For two sides, the difference is a further column. For more sides, differences are a row below each measure. names:
    headers of the columns (default: the names of the sides).
    """
    names = names or [side.name for side in sides]
    first = names[0]
    header = ["", *names]
    rows = [["image size, px", *(str(side.size) for side in sides)]]
    if len(sides) == 2:
        header.append(f"− {first}")
        rows[0].append("")
    for label, values, differences in _judged_rows(sides, verdict):
        row = [label, *values]
        if len(sides) == 2:
            row += differences or [""]
        rows.append(row)
        if len(sides) > 2 and differences:
            rows.append([f"  − {first}", "", *differences])
    return Table(header, rows)


#: A row: label, values of all sides, and differences of the other sides from the first.
_Row = tuple[str, list[str], list[str]]


def _judged_rows(sides: Sequence[Side], verdict: Verdict) -> Iterator[_Row]:
    """Yield the accuracies and, if class sizes differ, the share of the most frequent class and balanced accuracies."""
    pairs = [pair for pair in verdict.pairs if pair.first == 0]
    measures = () if sides[0].scores is None else MEASURES
    for name in measures:
        values = [f"{side.reached(name):.1f}" for side in sides]
        yield f"{name}, % ↑", values, [str(pair.differences[name]) for pair in pairs]
    majority = None if sides[0].scores is None else sides[0].scores.majority
    if majority is None:
        return
    yield "most frequent class, %", [f"{majority:.1f}"] * len(sides), []
    for name in measures:
        values = [f"{side.scores.balanced(name):.1f}" for side in sides if side.scores]
        yield f"{name}, balanced, % ↑", values, []


def _scores(sides: Sequence[Side], pair: Pair, place: int) -> str:
    """Return the measures of a side of the pair next to the other side; → leads from the first to the second."""
    forward = place == pair.second
    side = sides[place]
    other = sides[pair.first if forward else pair.second]
    parts = []
    for name in reversed(MEASURES):
        found = pair.differences[name]
        own = side.reached(name)
        theirs = other.reached(name)
        shown = Difference(found.points if forward else -found.points, found.half)
        means = f"{theirs:.1f} → {own:.1f} %" if forward else f"{own:.1f} against {theirs:.1f} %"
        parts.append(f"{name} {means} ({shown.said(' points')})")
    return ", ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
