"""Scores backbones on labelled images: cross-validated k-NN and linear probe, paired differences."""

from __future__ import annotations

import functools
import itertools
import math
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
from hexa.evaluation.few_labels import half_width, student
from hexa.evaluation.protocol import balanced_accuracy, majority_class
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.split import folds
from hexa.runtime.random import Stream

if TYPE_CHECKING:
    from hexa.evaluation.protocols.probe import FittedProbe

#: Number of neighbours of k-NN.
NEIGHBOURS = 15
#: Number of folds of a cross-validation.
FOLDS = 5
#: Number of random splits into folds; scores of an image are averaged over splits.
SPLITS = 3
#: Factor that widens intervals over cross-validated images to a coverage of 95 %
#: (docs/decisions/comparisons-and-claims.md).
WIDTH = 1.1
#: The factor for images in groups, because a group changes a probe more than a single image does.
GROUPED_WIDTH = 1.2
#: Other factors, by measure, because a draw of images changes k-NN more.
_WIDTHS = {"k-NN": 1.25}
#: Minimum number of scored images for a significant difference; fewer differences are far from normal.
FEWEST = 20
#: Differences of two pseudo-images: half an image in each cell of the table of right and wrong. Without pseudo-images,
#: 95 % intervals can have a coverage of only 60 % if few images differ (Agresti and Min, 2005).
_ADDED = np.array([-100, 100]) / math.sqrt(2)
#: Minimum number of groups for a significant difference; sums of fewer groups may agree by chance.
FEWEST_GROUPS = 5
#: Minimum effective number of groups. With fewer, most images are in few groups.
FEWEST_EFFECTIVE = 4.0
#: Names of the measures of single images.
MEASURES = (NEAREST, DECIDING) = ("k-NN", "linear probe")

Rows = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A difference in percentage points, with half the width of its 95 % interval."""

    points: float
    half: float

    @property
    def sign(self) -> int:
        """1 or −1 if the interval excludes 0; else 0."""
        return int(np.sign(self.points)) if abs(self.points) > self.half else 0

    def __str__(self) -> str:
        return self.said()

    def said(self, unit: str = "") -> str:
        """Return points, half of the interval and unit as text, or a remark if there are too few images."""
        half = (
            f" ± {self.half:.1f}{unit}"
            if self.half < 100
            else f"{unit}, too few images or groups to tell"
        )
        return f"{round(self.points, 1) + 0.0:+.1f}{half}".replace("-", "−")


@dataclass(frozen=True)
class Scores:
    """Scores of a backbone on labelled images.

    right: measure -> [M]; for each of the M scored images, the share in percent of the splits in which the image is
    classified correctly. labels, groups: int64 [M]; groups are None if they are not used.
    """

    right: dict[str, Array]
    labels: Rows
    groups: Rows | None = None

    def accuracy(self, measure: str) -> float:
        """Return the accuracy in percent."""
        return float(self.right[measure].mean())

    def balanced(self, measure: str) -> float:
        """Return the balanced accuracy in percent."""
        return balanced_accuracy(self.right[measure] / 100, self.labels)

    @property
    def majority(self) -> float | None:
        """Share of the most frequent class in percent; None if all classes have equally many images."""
        sizes = np.unique(self.labels, return_counts=True)[1]
        return None if sizes.min() == sizes.max() else majority_class(self.labels)


class Judge:
    """Folds of labelled images, drawn by the seed, so that backbones are compared image by image.

    Each image of a class with at least two images is scored once in each split; singletons are training data only.
    Images of one group are always in the same fold. If fewer than two classes could then be scored, or if every group
    has one image, groups are ignored and `groups` is None. parts: the folds of all splits, in order.
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
        if not can_judge(labels):
            raise UserError(f"{_too_few(labels)}; label more images")

        def split(groups: Rows | None) -> None:
            self.groups = groups
            #: Random splits; a split is a list of folds.
            self.splits = [
                folds(labels, FOLDS, stream.child("split", number), groups)
                for number in range(splits)
            ]
            judged = [np.concatenate([*parts, labels[:0]]) for parts in self.splits]
            #: int64 [M], the images that are scored in every split.
            self.judged = np.sort(functools.reduce(np.intersect1d, judged))

        if groups is not None and len(np.unique(groups)) == len(groups):
            groups = None
        split(groups)
        if groups is not None:
            judged_classes = len(np.unique(labels[self.judged]))
            if min(judged_classes, len(np.unique(groups))) < 2:
                split(None)
        self.parts = list(itertools.chain(*self.splits))
        alone = np.arange(len(labels)) if self.groups is None else self.groups
        #: The training images of each fold.
        self.rests = [np.flatnonzero(~np.isin(alone, alone[part])) for part in self.parts]

    def probes(self, features: Tensor) -> list[FittedProbe]:
        """Fit a probe for each fold on features [N, D] of the other folds.

        The weight decay is chosen in the first fold, by loss. A choice by accuracy varies between draws of a hundred
        images, and the scores would vary with it.
        """
        from hexa.evaluation.protocols.probe import (
            ENOUGH,
            WEIGHT_DECAYS,
            fit_probe,
        )  # imports scipy, which a plan does not need

        wanted = torch.from_numpy(self.labels)
        classes = int(self.labels.max()) + 1
        made: list[FittedProbe] = []
        for rest in self.rests:
            # chosen once, because a choice in each fold takes six times as long
            decays = (made[0].weight_decay,) if made else WEIGHT_DECAYS
            groups = None if self.groups is None else self.groups[rest]
            fit = functools.partial(fit_probe, enough=ENOUGH, seed=self.seed, by_loss=True)
            x = features[rest]
            y = wanted[rest]
            made.append(fit(x, y, classes, weight_decays=decays, groups=groups))
        return made

    def scores(self, features: Tensor, probes: Sequence[FittedProbe] | None = None) -> Scores:
        """Return the scores of features [N, D]. probes: fitted on these features by `probes` (default: fit them)."""
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
    """Return after − before in percentage points, paired by image: mean d ± w · t · s / √n.

    before, after: [M], in percent; d is their difference. w depends on measure and groups. s and n include two
    pseudo-images of ±100 / √2 (Agresti and Min, 2005), but the interval is centred on the mean of the images. t is
    Student's quantile for n − 1 degrees of freedom at a confidence of 1 − 0.05 / `comparisons` (Bonferroni), so that all
    intervals hold together with 95 %. With fewer than 20 images, the interval is infinite.
    groups: [M]. The cluster-robust error √(Σ sum² / (1 − m / M)) / M, with the sums of d − mean d over the m images of
    each group (CR2; Bell and McCaffrey, 2002), replaces s / √n if it gives a wider interval. Its degrees of freedom are
    the effective number of groups − 1. With fewer than five groups, or an effective number below four, the interval is
    infinite.
    """
    d = after - before
    points = float(d.mean())
    if len(d) < FEWEST:
        return Difference(points, math.inf)
    half = half_width(np.append(d, _ADDED), comparisons)
    if groups is None:
        return Difference(points, _WIDTHS.get(measure, WIDTH) * half)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    effective = effective_groups(sizes)
    if len(sizes) < FEWEST_GROUPS or effective < FEWEST_EFFECTIVE:
        return Difference(points, math.inf)
    sums = np.bincount(group, d - points)
    error = math.sqrt((sums**2 / (1 - sizes / len(d))).sum()) / len(d)
    half = max(half, student(effective - 1, comparisons) * error)
    return Difference(points, _WIDTHS.get(measure, GROUPED_WIDTH) * half)


def effective_groups(sizes: Rows) -> float:
    """Return the effective number of groups, (Σ m)² / Σ m² of their sizes m; of equal groups, their number."""
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def over_draws(
    before: Array,
    after: Array,
    comparisons: int,
) -> Difference:
    """Return after − before in percentage points, paired by draw, with Student's interval."""
    d = after - before
    return Difference(float(d.mean()), half_width(d, comparisons))


def difference(
    start: Scores,
    other: Scores,
    measure: str,
    comparisons: int = 1,
) -> Difference:
    """Return other − start for a measure of single images; see `paired`."""
    values = (start.right[measure], other.right[measure])
    return paired(*values, measure, comparisons, start.groups)


def can_judge(labels: Rows | None) -> bool:
    """True if two classes or more have at least two images each."""
    return labels is not None and int((np.unique(labels, return_counts=True)[1] > 1).sum()) > 1


def take_groups(source: Source, spec: str | None) -> None:
    """Set the groups of a source from `spec` (`groups_of`); an image without a group is a group of its own.

    Groups of one image each replace sub-folders, so that images are independent. Raises UserError.
    """
    if spec is not None:
        labels_of(source)  # raises UserError without labels, because groups then have no use
        numbers: dict[str, int] = {}
        given = groups_of(spec, source)
        source.ungrouped = given.count(None)
        number = [
            -1 - row if name is None else numbers.setdefault(name, row)
            for row, name in enumerate(given)
        ]
        own = source.groups()
        source.grouped = np.unique(number, return_inverse=True)[1]
        independent = source.grouped.max() + 1 == len(source)
        if independent and own is None:
            raise UserError(
                f"--groups {spec}: no two images of {source!r} share a group; leave out --groups"
            )
        if not independent and Judge(labels_of(source), groups=source.grouped).groups is None:
            raise UserError(
                f"--groups {spec}: fewer than two classes span several groups, so that no fold can be "
                "scored; label images of more groups, or leave out --groups"
            )


def labels_of(source: Source) -> Rows:
    """Return the class of every image. Raises UserError, with the reason, if these labels cannot score a backbone."""
    if source.labels is None:
        raise UserError(
            f"a comparison needs labels (--labelled), but {source!r} has none; {source.why_unlabelled}"
        )
    if source.classes is None:
        raise UserError(f"{source!r} is multi-label; give --labelled, images of one class each")
    if not can_judge(source.classes):
        remedy = "label more images, or give --labelled"
        drawn = source.drawn
        if drawn is not None and can_judge(source.whole.classes):
            needed = 2 * len(np.unique(source.classes))
            remedy = f"--images {drawn.images} draws too few; give {needed} or more"
        raise UserError(f"{source!r}: {_too_few(source.classes)}; {remedy}")
    return source.classes


def _too_few(labels: Rows) -> str:
    """Return a sentence on labels that fail `can_judge`."""
    counts = np.bincount(labels)
    return (
        f"{int((counts > 1).sum())} of {int((counts > 0).sum())} classes have two labelled images "
        "or more, and a comparison needs two such classes"
    )
