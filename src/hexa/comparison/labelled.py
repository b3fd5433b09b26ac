"""Compares backbones on labelled images: cross-validated k-NN and probe, paired differences."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError
from hexa.data import Source
from hexa.data.sources.groups import groups_of
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.protocol import balanced_accuracy, majority_class
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.split import folds
from hexa.reporting.tables import counted
from hexa.runtime.random import Stream

if TYPE_CHECKING:
    from hexa.evaluation.protocols.probe import FittedProbe

#: Neighbours that vote.
NEIGHBOURS = 15
#: Folds of a cross-validation.
FOLDS = 5
#: Random splits into folds that an image's outcome is averaged over.
SPLITS = 3
#: Factor of intervals over cross-validated images, by which they hold 95 % of true differences
#: (docs/decisions/comparisons-and-claims.md).
WIDTH = 1.1
#: The factor if images are in groups: as training data, a group changes a probe more than an image does.
GROUPED_WIDTH = 1.2
#: The factor by measure if it is another one: a draw of images changes k-NN more.
_WIDTHS = {"k-NN": 1.25}
#: Standard deviation in points of an image's difference between two related backbones.
_DEVIATION = 35.0
#: Correlation of the differences of two images of a group.
_ALIKE = 0.3
#: Probability with which a difference is to be shown.
_POWER = 0.8
#: Fewer judged images decide nothing: differences of so few are far from normal.
_FEWEST = 20
#: Differences of two pseudo-images, half an image in each cell of the table of right and wrong. Without them, where few
#: images differ, 95 % intervals held in as few as 60 % of draws (Agresti and Min, 2005).
_ADDED = np.array([-100, 100]) / math.sqrt(2)
#: Fewer groups decide nothing, since their few sums may agree by chance.
_FEWEST_GROUPS = 5
#: The measures of single images, by the names that tables use.
MEASURES = (NEAREST, DECIDING) = ("k-NN", "linear probe")

Rows = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A difference in percentage points, and half the width of its 95 % interval."""

    points: float
    half: float

    @property
    def sign(self) -> int:
        """1 or −1 where the interval excludes 0; else 0."""
        return int(np.sign(self.points)) if abs(self.points) > self.half else 0

    def __str__(self) -> str:
        return self.said()

    def said(self, unit: str = "") -> str:
        """Points and half of the interval, then the unit, or that there is too little to tell by."""
        half = (
            f" ± {self.half:.1f}{unit}"
            if self.half < 100
            else f"{unit}, too few images or groups to tell"
        )
        return f"{round(self.points, 1) + 0.0:+.1f}{half}".replace("-", "−")


@dataclass(frozen=True)
class Scores:
    """How many labelled images a backbone classifies correctly.

    right: measure -> [M], the share in percent of the splits in which each of the M judged images is classified
    correctly. labels, groups: int64 [M], of the judged images; groups are None if they are not used.
    """

    right: dict[str, Array]
    labels: Rows
    groups: Rows | None = None

    def accuracy(self, measure: str) -> float:
        """In percent."""
        return float(self.right[measure].mean())

    def balanced(self, measure: str) -> float:
        """Balanced accuracy in percent."""
        return balanced_accuracy(self.right[measure] / 100, self.labels)

    @property
    def majority(self) -> float | None:
        """Share of the most frequent class in percent; None if the judged images are equally many of every class."""
        sizes = np.unique(self.labels, return_counts=True)[1]
        return None if sizes.min() == sizes.max() else majority_class(self.labels)


class Judge:
    """Labelled images, split by the seed, so that backbones are compared image by image.

    Every image of a class of two or more is judged once in each split, by the images of the other folds; those of
    classes of one only take part in the vote. Images of one group don't judge each other, unless fewer than two classes
    were judged then: `groups` is None where they are not used. parts: the folds of the first split, then of the others.
    """

    def __init__(
        self,
        labels: Rows,
        seed: int = 0,
        groups: Rows | None = None,
        splits: int = SPLITS,
    ) -> None:
        """labels, groups: int64 [N]. Raises UserError if there are not two classes with two images each."""
        stream = Stream(seed).child("comparison")
        self.labels = labels
        self.seed = seed
        counts = np.bincount(labels)
        if (counts > 1).sum() < 2:
            raise UserError(
                f"{int((counts > 1).sum())} of {int((counts > 0).sum())} classes have two "
                "labelled images or more, and a comparison needs two such classes; label more "
                "images"
            )

        def split(groups: Rows | None) -> None:
            self.groups = groups
            #: Random splits, each a list of folds.
            self.splits = [
                folds(labels, FOLDS, stream.child("split", number), groups)
                for number in range(splits)
            ]
            judged = [np.concatenate([*parts, labels[:0]]) for parts in self.splits]
            #: int64 [M], the images that are judged in every split.
            self.judged = np.sort(functools.reduce(np.intersect1d, judged))

        split(groups)
        if groups is not None:
            judged_classes = len(np.unique(labels[self.judged]))
            if min(judged_classes, len(np.unique(groups))) < 2:
                split(None)
        self.parts = list(itertools.chain(*self.splits))
        alone = np.arange(len(labels)) if self.groups is None else self.groups
        #: The images that judge those of each fold.
        self.rests = [np.flatnonzero(~np.isin(alone, alone[part])) for part in self.parts]

    def probes(self, features: Tensor) -> list[FittedProbe]:
        """A probe for each fold, of features [N, D] of the others.

        The weight decay is chosen in the first fold, by loss: a choice by right answers would differ between draws of
        a hundred images, and so would accuracies.
        """
        from hexa.evaluation.protocols.probe import (
            ENOUGH,
            WEIGHT_DECAYS,
            fit_probe,
        )  # scipy.optimize: a plan does without

        wanted = torch.from_numpy(self.labels)
        classes = int(self.labels.max()) + 1
        made: list[FittedProbe] = []
        for rest in self.rests:
            # chosen once, for all of them: in each fold it would take six times as long
            decays = (made[0].weight_decay,) if made else WEIGHT_DECAYS
            groups = None if self.groups is None else self.groups[rest]
            fit = functools.partial(fit_probe, enough=ENOUGH, seed=self.seed, by_loss=True)
            x = features[rest]
            y = wanted[rest]
            made.append(fit(x, y, classes, weight_decays=decays, groups=groups))
        return made

    def scores(self, features: Tensor, probes: Sequence[FittedProbe] | None = None) -> Scores:
        """The scores of features [N, D]. probes: of these features, fitted before."""
        wanted = torch.from_numpy(self.labels)
        classes = int(self.labels.max()) + 1
        times = {measure: np.zeros(len(wanted)) for measure in MEASURES}
        for part, rest, probe in zip(
            self.parts, self.rests, probes or self.probes(features), strict=True
        ):
            votes = knn_classify(
                features[rest], wanted[rest], features[part], NEIGHBOURS, num_classes=classes
            )
            for measure, scored in zip(
                MEASURES, (votes, probe.scores(features[part])), strict=True
            ):
                times[measure][part] += (scored.argmax(1) == wanted[part]).numpy()
        right = {name: 100 * row[self.judged] / len(self.splits) for name, row in times.items()}
        groups = None if self.groups is None else self.groups[self.judged]
        return Scores(right, self.labels[self.judged], groups)


def paired(
    before: Array,
    after: Array,
    measure: str,
    comparisons: int = 1,
    groups: Rows | None = None,
) -> Difference:
    """after − before in percentage points, d paired by image: mean d ± w · t · s / √n, w by measure and groups.

    before, after: [M], in percent. s and n are with two pseudo-images of ±100 / √2 (Agresti and Min, 2005), but centred
    on the images' own mean. t is Student's for n − 1 degrees of freedom at a confidence of 1 − 0.05 / `comparisons`
    (Bonferroni), so that all intervals hold together with 95 %. Under 20 images the interval is infinite. groups: [M];
    the sums of d − mean d over each of the G may widen it, by √(G / (G − 1) · Σ sum²) / M instead of s / √n and G − 1
    degrees of freedom (cluster-robust; Cameron & Miller 2015), and under five groups it is infinite.
    """
    d = after - before
    points = float(d.mean())
    many_groups = groups is None or len(np.unique(groups)) >= _FEWEST_GROUPS
    if len(d) < _FEWEST or not many_groups:
        return Difference(points, math.inf)
    half = half_width(np.append(d, _ADDED), comparisons)
    width = WIDTH
    if groups is not None:
        width = GROUPED_WIDTH
        sums = np.bincount(np.unique(groups, return_inverse=True)[1], d - points)
        half = max(half, half_width(sums * len(sums) / len(d), comparisons))
    return Difference(points, _WIDTHS.get(measure, width) * half)


def over_draws(
    before: Array,
    after: Array,
    comparisons: int = 1,
) -> Difference:
    """after − before in percentage points, paired by draw, with Student's interval."""
    d = after - before
    return Difference(float(d.mean()), half_width(d, comparisons))


def difference(
    start: Scores,
    other: Scores,
    measure: str,
    comparisons: int = 1,
) -> Difference:
    """other − start by a measure of single images; see `paired`."""
    values = (start.right[measure], other.right[measure])
    return paired(*values, measure, comparisons, start.groups)


def can_judge(labels: Rows | None) -> bool:
    """Whether there are two classes or more with two images each."""
    return labels is not None and int((np.unique(labels, return_counts=True)[1] > 1).sum()) > 1


def showable(
    images: int,
    groups: Rows | None = None,
    comparisons: int = 1,
) -> str:
    """A sentence on the true difference that as many images show in four of five comparisons. groups: int64 [N]."""
    sizes = np.ones(images) if groups is None else np.unique(groups, return_counts=True)[1]
    within = f" in {counted(len(sizes), 'group')}" if sizes.max() > 1 else ""
    given = f"with {images:,} labelled images{within}"
    if images < _FEWEST or len(sizes) < _FEWEST_GROUPS:
        return f"{given} no difference can be shown"
    independent = images / (1 + _ALIKE * (float((sizes**2).sum() / sizes.sum()) - 1))
    normal = statistics.NormalDist()
    reach = normal.inv_cdf(1 - 0.025 / comparisons) + normal.inv_cdf(_POWER)
    width = WIDTH if sizes.max() == 1 else GROUPED_WIDTH
    points = reach * width * _DEVIATION / math.sqrt(independent)
    return f"{given} a difference of about {points:.0f} points can be shown"


def shown_by(
    judge: Judge,
    most: int | None = None,
    comparisons: int = 1,
) -> str:
    """`showable` by the images that this judge scores, of which at most so many are drawn."""
    rows = judge.judged
    if most is not None and most < len(rows):
        rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
    groups = None if judge.groups is None else judge.groups[rows]
    return showable(len(rows), groups, comparisons)


def count_groups(groups: Rows) -> str:
    """The number of groups of two images or more, such as "3 groups"."""
    return counted(int((np.bincount(groups) > 1).sum()), "group")


def groups_note(judge: Judge, groups: Rows | None) -> str:
    """A note that says which labelled images judge each other. groups: int64 [N], those given, even if unused."""
    if groups is None or np.bincount(groups).max() < 2:
        return "labelled images count as independent; if they come in series, say of several visits, give --groups"
    used = "do not judge each other"
    unused = "count as independent, since fewer than two classes are in several groups"
    return f"images of one group ({count_groups(groups)} in all) {unused if judge.groups is None else used}"


def take_groups(source: Source, spec: str | None) -> None:
    """Let the groups of a source be those of `spec` (`groups_of`); an image in none is alone. Raises UserError."""
    if spec is not None:
        labels_of(source)  # raises where groups would have no use
        numbers: dict[str, int] = {}
        given = groups_of(spec, source)
        source.ungrouped = given.count(None)
        number = [
            -1 - row if name is None else numbers.setdefault(name, row)
            for row, name in enumerate(given)
        ]
        source.grouped = np.unique(number, return_inverse=True)[1]
        if source.grouped.max() + 1 == len(source):
            raise UserError(
                f"--groups {spec}: no two images of {source!r} are in one group; leave it out"
            )
        if Judge(labels_of(source), groups=source.grouped).groups is None:
            raise UserError(
                f"--groups {spec}: fewer than two classes are in several groups, so that no "
                "group can be judged by others; label images of other groups, or leave it out"
            )


def labels_of(source: Source) -> Rows:
    """The classes of all images. Raises UserError if they have none, or several."""
    if source.classes is None:
        problem = (
            "are of one class or have no labels" if source.labels is None else "are multi-label"
        )
        raise UserError(
            f"the images of {source!r} {problem}; give labelled ones, in two class folders or by a column"
        )
    return source.classes
