"""Which of several backbones is better, in a sentence, and the difference of every two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison import labelled, unlabelled
from hexa.comparison.labelled import DECIDING, MEASURES, Difference, Scores
from hexa.config import UserError
from hexa.data import Source
from hexa.reporting.tables import Table, counted, shortened
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
        if mine is None or theirs is None:
            raise UserError(
                f"{first.name} and {second.name} are to be compared by labels, but were not judged by any"
            )
        differences = {name: labelled.difference(mine, theirs, name, count) for name in mine.right}
        few = {
            few_name(shots): labelled.over_draws(mine.few[shots], theirs.few[shots], count)
            for shots in mine.few
        }
        pairs.append(Pair(a, b, differences[DECIDING].sign, {**differences, **few}))
    every = range(len(sides))
    beaten = [{_other(pair, place) for pair in pairs if pair.winner == place} for place in every]
    best = next((place for place in every if len(beaten[place]) == len(sides) - 1), None)
    unbeaten = [place for place in every if not any(place in others for others in beaten)]
    highest = (
        max(unbeaten or every, key=lambda place: sides[place].reached(DECIDING))
        if best is None
        else best
    )
    others = [
        place
        for place in every
        if place != highest and (best is not None or place not in beaten[highest])
    ]
    against = [
        pair for pair in pairs if {pair.first, pair.second} in [{highest, one} for one in others]
    ]
    nearest = min(against, key=lambda pair: abs(pair.differences[DECIDING].points))
    several = f"against {sides[_other(nearest, highest)].name}: " if len(others) > 1 else ""
    names = _listed([sides[place].name for place in others])
    if best is not None:
        said = (
            f"{sides[best].name} is better than {names}: {several}{_scores(sides, nearest, best)}"
        )
    elif len(sides) == 2:
        said = f"these labels show no significant difference: {_scores(sides, nearest, 1)}"
    else:
        said = f"{sides[highest].name} is not significantly better than {names}: {several}"
        said += _scores(sides, nearest, highest)
        worse = [sides[place].name for place in beaten[highest]]
        said += f"; it is better than {_listed(worse)}" if worse else ""
    return Verdict(best, said, tuple(pairs))


def without_labels(sides: Sequence[Side]) -> Verdict:
    """No side is better; the sentence gives the share of the first side's neighbourhoods that each other one keeps."""
    shares = [
        100 * float(unlabelled.kept(sides[0].features, side.features).mean()) for side in sides[1:]
    ]
    kept = ", ".join(
        f"{side.name} {share:.0f} %" for side, share in zip(sides[1:], shares, strict=True)
    )
    said = f"without labels it cannot be told which is better (share of {sides[0].name}'s neighbourhoods kept: {kept})"
    said += "; give labelled images (--labelled), a few per class, to know"
    return Verdict(
        None, said, tuple(Pair(0, place, 0, kept=share) for place, share in enumerate(shares, 1))
    )


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


def table(sides: Sequence[Side], verdict: Verdict, width: int | None = None) -> Table:
    """A row for each measure: its name with an arrow for which way is good, and every side.

    The difference of two sides is a further column; those of more sides are a row of their own below each measure.
    width: of a terminal, for which names are shortened so that three sides fit into 80 columns; None to keep them.
    """
    names = [side.name for side in sides]
    if width is not None:
        room = (width - _LABELS) // len(sides) - 2
        names = shortened(names, max(_LEAST, min(_MOST, room)))
    first, *others = names
    measured = _judged_rows if sides[0].scores is not None else _unlabelled_rows
    header = ["", *names]
    rows = [["image size, px", *(str(side.size) for side in sides)]]
    if len(sides) == 2:
        header.append(f"{others[0]} − {first}")
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
#: Columns of a terminal for the labels of rows.
_LABELS = 30
#: Fewest columns of a name.
_LEAST = 8
#: Most columns of a name.
_MOST = 14


def _judged_rows(sides: Sequence[Side], verdict: Verdict) -> Iterator[_Row]:
    """Accuracies; then, if classes are unequal, the share of the most frequent one and the balanced accuracies."""
    pairs = [pair for pair in verdict.pairs if pair.first == 0]
    for name in pairs[0].differences:
        shown = [_shown(side, name) for side in sides]
        yield f"{name}, % ↑", shown, [str(pair.differences[name]) for pair in pairs]
    majority = None if sides[0].scores is None else sides[0].scores.majority
    if majority is None:
        return
    yield "most frequent class, %", [f"{majority:.1f}"] * len(sides), []
    for name in pairs[0].differences:
        short = name.replace(" per class", "")
        yield f"{short}, balanced, % ↑", [_balanced(side, name) for side in sides], []


def _unlabelled_rows(sides: Sequence[Side], verdict: Verdict) -> Iterator[_Row]:
    kept = [f"{pair.kept:.0f} %" for pair in verdict.pairs if pair.first == 0]
    yield "neighbourhoods kept", ["100 %", *kept], []


def few_name(shots: int) -> str:
    """The name of the row with the accuracy from `shots` labelled images of each class."""
    return f"{counted(shots, 'label')} per class"


def _shown(side: Side, name: str) -> str:
    assert side.scores is not None
    if name in side.scores.right:
        return f"{side.scores.accuracy(name):.1f}"
    return _mean_of(side.scores.few[int(name.split()[0])])


def _balanced(side: Side, name: str) -> str:
    assert side.scores is not None
    if name in side.scores.right:
        return f"{side.scores.balanced(name):.1f}"
    return _mean_of(side.scores.few_balanced[int(name.split()[0])])


def _mean_of(draws: NDArray[np.float64]) -> str:
    return f"{draws.mean():.1f} ± {draws.std(ddof=1):.1f}"


def _other(pair: Pair, place: int) -> int:
    return pair.first + pair.second - place


def _scores(sides: Sequence[Side], pair: Pair, place: int) -> str:
    """The measures of the side at this place against the other of the pair; → leads from first to second."""
    turn, between = (
        (1, "{1:.1f} → {0:.1f} %") if place == pair.second else (-1, "{0:.1f} against {1:.1f} %")
    )
    side = sides[place]
    other = sides[_other(pair, place)]
    parts = []
    for name in reversed(MEASURES):
        found = pair.differences[name]
        shown = Difference(turn * found.points, found.half)
        parts.append(
            f"{name} {between.format(side.reached(name), other.reached(name))} ({shown.said(' points')})"
        )
    return ", ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
