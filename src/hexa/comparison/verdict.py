"""Which of several backbones is better, in a sentence, and the difference of every two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from hexa.comparison import labelled, unlabelled
from hexa.comparison.labelled import DECIDING, MEASURES, Difference, Scores
from hexa.data import Source
from hexa.reporting.tables import Table, counted
from hexa.weights.pretrained import Backbone


@dataclass(frozen=True)
class Side:
    """A backbone and its scores."""

    name: str
    """The backbone's name in tables and sentences."""
    backbone: Backbone
    """The network, with its image size and normalisation."""
    features: Tensor
    """[N, D], of the images that are readable for all backbones."""
    scores: Scores | None = None
    """Its scores by labels; None without."""

    @property
    def record(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        scores = self.scores or Scores({}, {})
        few = {str(shots): draws.tolist() for shots, draws in scores.few.items()}
        balanced = {str(shots): draws.tolist() for shots, draws in scores.few_balanced.items()}
        return {
            "name": self.name,
            "size": self.size,
            "num_features": self.features.shape[1],
            "weights": self.backbone.content_hash(),
            "scores": {name: scores.accuracy(name) for name in scores.right},
            "balanced_accuracy": {name: scores.balanced(name) for name in scores.right},
            "few": few,
            "few_balanced_accuracy": balanced,
        }

    @property
    def size(self) -> int:
        """Side of its images in pixels."""
        return self.backbone.image_size

    def reached(self, measure: str) -> float:
        """Accuracy in percent by labels."""
        assert self.scores is not None
        return self.scores.accuracy(measure)


@dataclass(frozen=True)
class Pair:
    """Two sides, by place, and how they differ."""

    first: int
    second: int
    better: int
    """1 if the second is better, −1 if it is worse, 0 if neither can be said."""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    """second − first in percentage points, with labels."""
    kept: float | None = None
    """Without labels: the share in percent of the first's neighbourhoods that survive in the second."""

    @property
    def record(self) -> dict[str, Any]:
        """All numbers, for JSON; differences as points and half of the interval."""
        differences = {name: [one.points, one.half] for name, one in self.differences.items()}
        return {**vars(self), "differences": differences}

    @property
    def winner(self) -> int | None:
        """The place of the better side; None if neither is."""
        return (self.second if self.better > 0 else self.first) if self.better else None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison."""

    best: int | None
    """The place of the side that is better than all others; None if there is none."""
    sentence: str
    pairs: tuple[Pair, ...]


def by_labels(sides: Sequence[Side], trials: int = 1) -> Verdict:
    """By the linear probe; intervals hold for all pairs and `trials` together.

    trials: how many states a side was chosen from by the same labels.
    """
    count = trials * math.comb(len(sides), 2)
    pairs = []
    for (a, first), (b, second) in itertools.combinations(enumerate(sides), 2):
        mine = first.scores
        theirs = second.scores
        assert mine is not None
        assert theirs is not None
        differences = {name: labelled.difference(mine, theirs, name, count) for name in mine.right}
        few = {
            few_name(shots): labelled.over_draws(mine.few[shots], theirs.few[shots], count)
            for shots in mine.few
        }
        pairs.append(Pair(a, b, differences[DECIDING].sign, {**differences, **few}))
    every = range(len(sides))
    beaten = [{_other(pair, place) for pair in pairs if pair.winner == place} for place in every]
    top = max(every, key=lambda place: sides[place].reached(DECIDING))
    others = [place for place in every if place != top]
    rivals = [place for place in others if place not in beaten[top]]
    of_top = [pair for pair in pairs if top in (pair.first, pair.second)]
    against = [pair for pair in of_top if _other(pair, top) in (rivals or others)]
    nearest = min(against, key=lambda pair: abs(pair.differences[DECIDING].points))
    names = _listed([sides[place].name for place in rivals or others])
    several = f"against {sides[_other(nearest, top)].name}: " if len(against) > 1 else ""
    scores = f"{several}{_scores(sides, nearest, top)}"
    if not rivals:
        said = f"{sides[top].name} is better than {names}: {scores}"
    elif len(sides) == 2:
        said = f"these labels show no significant difference: {_scores(sides, nearest, 1)}"
    else:
        said = f"{sides[top].name} is not significantly better than {names}: {scores}"
        if beaten[top]:
            said += f"; it is better than {_listed([sides[place].name for place in beaten[top]])}"
    return Verdict(None if rivals else top, said, tuple(pairs))


def without_labels(sides: Sequence[Side]) -> Verdict:
    """No side is better; the sentence gives the share of the first side's neighbourhoods that each other one keeps."""
    first = sides[0]
    pairs = []
    shares = []
    for place, side in enumerate(sides[1:], 1):
        share = 100 * float(unlabelled.kept(first.features, side.features).mean())
        pairs.append(Pair(0, place, 0, kept=share))
        shares.append(f"{side.name} {share:.0f} %")
    said = f"without labels it cannot be told which is better (share of {first.name}'s neighbourhoods kept: "
    said += f"{', '.join(shares)}); give labelled images (--labelled), a few per class, to know"
    return Verdict(None, said, tuple(pairs))


def constant_note(side: Side, images: Source) -> str:
    """A note if an accuracy of the side is not above the share of the most frequent class; else empty."""
    scores = side.scores
    if scores is None or scores.majority is None:
        return ""
    poor = [name for name in scores.right if scores.accuracy(name) <= scores.majority]
    if not poor:
        return ""
    label = int(np.bincount(scores.labels[DECIDING]).argmax())
    frequent = images.class_names[label] if images.class_names else str(label)
    return (
        f"{_listed(poor)} of {side.name}: not above the share of the most frequent class, {frequent} "
        f"({scores.majority:.1f} %), which a constant answer reaches; look at the balanced accuracy"
    )


def table(sides: Sequence[Side], verdict: Verdict) -> Table:
    """A row for each measure: its name with an arrow for which way is good, and every side.

    The difference of two sides is a further column; those of more sides are a row of their own below each measure.
    """
    names = [side.name for side in sides]
    first = names[0]
    measured = _judged_rows if sides[0].scores is not None else _unlabelled_rows
    header = ["", *names]
    rows = [["image size, px", *(str(side.size) for side in sides)]]
    if len(sides) == 2:
        header.append(f"− {first}")
        rows[0].append("")
    for label, values, differences in measured(sides, verdict):
        row = [label, *values]
        if len(sides) == 2:
            row += differences or [""]
        rows.append(row)
        if len(sides) > 2 and differences:
            rows.append([f"  − {first}", "", *differences])
    return Table(header, rows)


#: A row: its label, the values of all sides, and the differences of all but the first to the first, if any.
_Row = tuple[str, list[str], list[str]]


def _judged_rows(sides: Sequence[Side], verdict: Verdict) -> Iterator[_Row]:
    """Accuracies; then, if classes are unequal, the share of the most frequent one and the balanced accuracies."""
    pairs = [pair for pair in verdict.pairs if pair.first == 0]
    for name in pairs[0].differences:
        values = [_cell(side.scores, name) for side in sides]
        yield f"{name}, % ↑", values, [str(pair.differences[name]) for pair in pairs]
    majority = None if sides[0].scores is None else sides[0].scores.majority
    if majority is None:
        return
    yield "most frequent class, %", [f"{majority:.1f}"] * len(sides), []
    for name in pairs[0].differences:
        values = [_cell(side.scores, name, balanced=True) for side in sides]
        yield f"{name.replace(' per class', '')}, balanced, % ↑", values, []


def _unlabelled_rows(sides: Sequence[Side], verdict: Verdict) -> Iterator[_Row]:
    kept = [f"{pair.kept:.0f} %" for pair in verdict.pairs if pair.first == 0]
    yield "neighbourhoods kept", ["100 %", *kept], []


def few_name(shots: int) -> str:
    """The name of the row with the accuracy from `shots` labelled images of each class."""
    return f"{counted(shots, 'label')} per class"


def _cell(scores: Scores | None, name: str, balanced: bool = False) -> str:
    """An accuracy, or the mean of draws and their standard deviation. name: that of its row."""
    assert scores is not None
    if name in scores.right:
        return f"{scores.balanced(name) if balanced else scores.accuracy(name):.1f}"
    draws = (scores.few_balanced if balanced else scores.few)[int(name.split()[0])]
    return f"{draws.mean():.1f} ± {draws.std(ddof=1):.1f}"


def _other(pair: Pair, place: int) -> int:
    return pair.first + pair.second - place


def _scores(sides: Sequence[Side], pair: Pair, place: int) -> str:
    """The measures of the side at this place against the other of the pair; → leads from first to second."""
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
