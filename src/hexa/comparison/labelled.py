"""Compares backbones on labelled images: cross-validated k-NN and probe, few labels, paired differences."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hexa.config import UserError
from hexa.data import Source
from hexa.data.loading.pairs import groups_of
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.protocol import balanced_accuracy, majority_class
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.split import draw_per_class, folds
from hexa.reporting.tables import counted
from hexa.runtime.random import Stream

if TYPE_CHECKING:
    from hexa.evaluation.protocols.probe import FittedProbe

#: Neighbours that vote, folds of the cross-validation, labelled images per class of the few-label probe, draws of each.
NEIGHBOURS, FOLDS, SHOTS, DRAWS = 15, 5, (1, 2, 4, 8, 16), 5
#: Fewer judged images decide nothing: differences of so few are far from normal.
_FEWEST = 20
#: Differences of two pseudo-images, half an image in each cell of the table of right and wrong. Without them, where few
#: images differ, 95 % intervals held in as few as 60 % of draws (Agresti and Min, 2005).
_ADDED = np.array([-100, 100]) / math.sqrt(2)
#: Fewer groups decide nothing, since their few sums may agree by chance.
_FEWEST_GROUPS = 5
#: The measures that decide, by the names that tables use.
DECIDING = ("k-NN", "linear probe")

Right = NDArray[np.bool_]
Rows = NDArray[np.int64]
Array = NDArray[np.float64]
#: bool, right or not, or percentages.
Measured = NDArray[np.generic]


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

    right: measure -> bool [M], whether each of the M judged images is classified correctly. few: labels per class ->
    accuracy in percent, one per draw. groups: measure -> int64 [M], of the judged images, where they are known. width:
    by how much intervals over images are wider than those of independent ones. labels: measure -> int64 [M], of the
    judged images. few_balanced: like few, the balanced accuracy.
    """

    right: dict[str, Right]
    few: dict[int, NDArray[np.float64]]
    groups: dict[str, Rows] = field(default_factory=dict)
    width: float = 1.0
    labels: dict[str, Rows] = field(default_factory=dict)
    few_balanced: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def accuracy(self, measure: str) -> float:
        """In percent."""
        return 100 * float(self.right[measure].mean())

    def balanced(self, measure: str) -> float:
        """Balanced accuracy in percent."""
        return balanced_accuracy(self.right[measure], self.labels[measure])

    @property
    def majority(self) -> float | None:
        """Share of the most frequent class in percent; None if the judged images are equally many of every class."""
        labels = self.labels.get(DECIDING[0])
        if labels is None or len(set(np.unique(labels, return_counts=True)[1].tolist())) == 1:
            return None
        return majority_class(labels)


class Judge:
    """Labelled images, split once by the seed, so that backbones are compared image by image and draw by draw.

    Every image of a class of two or more is judged once, by the images of the other folds; those of classes of one only
    take part in the vote. Images of one group don't judge each other, unless fewer than two classes were judged then:
    `groups` is None where they are not used. width: of intervals over all judged images, see `width_of`.
    """

    def __init__(self, labels: Rows, seed: int = 0, groups: Rows | None = None) -> None:
        """labels, groups: int64 [N]. Raises UserError if there are not two classes with two images each."""
        stream = Stream(seed).child("comparison")
        self.labels, self.seed, counts = labels, seed, np.bincount(labels)
        self.groups, self.parts = groups, folds(labels, FOLDS, stream, groups)
        if groups is not None:
            judged = {label for part in self.parts for label in np.unique(labels[part])}
            if min(len(judged), len(np.unique(groups))) < 2:
                self.groups, self.parts = None, folds(labels, FOLDS, stream)
        if (counts > 1).sum() < 2:
            given = f"{int((counts > 1).sum())} of {int((counts > 0).sum())} classes have two labelled images or more"
            raise UserError(f"{given}, and a comparison needs two such classes; label more images")
        self.judged = np.sort(np.concatenate(self.parts))
        #: int64 [N], the group of each image, its own where groups are not used.
        self._alone = np.arange(len(labels)) if self.groups is None else self.groups
        self.rests = [
            np.flatnonzero(~np.isin(self._alone, self._alone[part])) for part in self.parts
        ]
        self.width = self.width_of(self.judged)
        self.draws: dict[int, list[Rows]] = {}
        pools, least = (
            [np.arange(len(labels))] * DRAWS,
            max(2, (counts > 1).sum() / 2),
        )  # fewer classes tell little
        if self.groups is not None:
            pools = [rest[np.isin(labels[rest], labels[self.judged])] for rest in self.rests]
        for shots, (number, pool) in itertools.product(SHOTS, enumerate(pools)):
            rows = pool[np.bincount(labels[pool])[labels[pool]] > shots]
            if len(np.unique(labels[rows])) >= least:
                drawn = rows[
                    draw_per_class(labels[rows], shots, stream.child("draw", shots, number))
                ]
                if len(np.unique(labels[self.asked(drawn)])) >= least:
                    self.draws.setdefault(shots, []).append(drawn)
        self.draws = {shots: draws for shots, draws in self.draws.items() if len(draws) > 1}

    def width_of(self, images: Rows) -> float:
        """By how much intervals over these of the judged images are wider than those of independent ones.

        √(1 + Σ n_test / n_train) over the folds, 1.5 for all of five equal ones: each is judged by most of the same
        images (Nadeau and Bengio, 2003). n_test counts `images` alone, since for few of them what the draw of those
        that were learned from adds is small beside what their own draw does.
        """
        tested = [int(np.isin(part, images).sum()) for part in self.parts]
        return math.sqrt(1 + sum(n / len(rest) for n, rest in zip(tested, self.rests, strict=True)))

    def asked(self, drawn: Rows) -> NDArray[np.bool_]:
        """bool [N], the images that a draw of few labels judges: of its classes, and of none of its groups."""
        return np.isin(self.labels, self.labels[drawn]) & ~np.isin(self._alone, self._alone[drawn])

    def probes(self, features: Tensor) -> list[FittedProbe]:
        """A probe for each fold, of features [N, D] of the others. Its weight decay is chosen in the first fold."""
        from hexa.evaluation.protocols.probe import (
            WEIGHT_DECAYS,
            fit_probe,
        )  # scipy.optimize: a plan does without

        wanted, classes = torch.from_numpy(self.labels), int(self.labels.max()) + 1
        made: list[FittedProbe] = []
        for rest in self.rests:
            # chosen once, for all of them: in each fold it would take six times as long
            decays = (made[0].weight_decay,) if made else WEIGHT_DECAYS
            fit = functools.partial(fit_probe, weight_decays=decays, seed=self.seed)
            groups = None if self.groups is None else self.groups[rest]
            made.append(fit(features[rest], wanted[rest], classes, groups=groups))
        return made

    def scores(self, features: Tensor, probes: Sequence[FittedProbe] | None = None) -> Scores:
        """The scores of features [N, D]. probes: of these features, fitted before."""
        wanted, classes = torch.from_numpy(self.labels), int(self.labels.max()) + 1
        right = {measure: np.zeros(len(wanted), dtype=np.bool_) for measure in DECIDING}
        for part, rest, probe in zip(
            self.parts, self.rests, probes or self.probes(features), strict=True
        ):
            votes = knn_classify(
                features[rest], wanted[rest], features[part], NEIGHBOURS, num_classes=classes
            )
            for measure, scored in zip(
                DECIDING, (votes, probe.scores(features[part])), strict=True
            ):
                right[measure][part] = (scored.argmax(1) == wanted[part]).numpy()
        few, few_balanced = dict[int, Array](), dict[int, Array]()
        for shots, draws in self.draws.items():
            reached = np.array([self._nearest_mean(features, drawn) for drawn in draws])
            few[shots], few_balanced[shots] = reached.T
        return Scores(
            {measure: row[self.judged] for measure, row in right.items()},
            few,
            {} if self.groups is None else dict.fromkeys(right, self.groups[self.judged]),
            self.width,
            dict.fromkeys(right, self.labels[self.judged]),
            few_balanced,
        )

    def _nearest_mean(self, features: Tensor, drawn: Rows) -> tuple[float, float]:
        """Accuracy and balanced accuracy in percent of the nearest class mean of the `drawn` features.

        Scored are the other images of the drawn classes. Features are centred on the mean of the drawn ones and normalised to unit length (SimpleShot's CL2N, Wang et al.
        2019).
        """
        asked = self.asked(drawn)
        x = functional.normalize(features - features[drawn].mean(0), dim=1)
        classes, place = np.unique(self.labels[drawn], return_inverse=True)
        means = torch.zeros(len(classes), x.shape[1]).index_add_(
            0, torch.from_numpy(place), x[drawn]
        )
        nearest = (x[asked] @ functional.normalize(means, dim=1).T).argmax(1).numpy()
        right, labels = classes[nearest] == self.labels[asked], self.labels[asked]
        return 100 * float(right.mean()), balanced_accuracy(right, labels)


def paired(
    before: Measured,
    after: Measured,
    comparisons: int = 1,
    width: float = 1.0,
    groups: Rows | None = None,
) -> Difference:
    """after − before in percentage points, d paired by image or by draw: mean d ± width · t · s / √n.

    bool [M], right or not, with two pseudo-images of ±100 / √2 in s and n (Agresti and Min, 2005, but centred on the
    images' own mean); or percentages, one per image or draw. t is Student's for n − 1 degrees of freedom at a
    confidence of 1 − 0.05 / `comparisons` (Bonferroni), so that all intervals hold together with 95 %. Under 20
    images the interval is infinite. groups: [M]; the sums of d − mean d over each of the G may widen it, by
    √(G / (G − 1) · Σ sum²) / M instead of s / √n and G − 1 degrees of freedom (cluster-robust; Cameron & Miller 2015),
    and under five groups it is infinite.
    """
    d, by_image = percent(after) - percent(before), before.dtype == np.bool_
    sums = (
        d
        if groups is None
        else np.bincount(np.unique(groups, return_inverse=True)[1], d - d.mean())
    )
    if len(d) < (_FEWEST if by_image else 2) or (groups is not None and len(sums) < _FEWEST_GROUPS):
        return Difference(float(d.mean()), math.inf)
    half = half_width(np.append(d, _ADDED) if by_image else d, comparisons)
    if groups is not None:
        half = max(half, half_width(sums * len(sums) / len(d), comparisons))
    return Difference(float(d.mean()), width * half)


def percent(values: Measured) -> NDArray[np.float64]:
    """Right or not, bool [M], as 0 or 100; accuracies in percent as they are."""
    return (100.0 if values.dtype == np.bool_ else 1.0) * values.astype(np.float64)


def difference(start: Scores, other: Scores, measure: str, comparisons: int = 1) -> Difference:
    """other − start by a measure of single images, with the interval of their width and groups; see `paired`."""
    return paired(
        start.right[measure],
        other.right[measure],
        comparisons,
        start.width,
        start.groups.get(measure),
    )


def decide(
    start: Scores, other: Scores, comparisons: int = 1
) -> tuple[int, Mapping[str, Difference]]:
    """Whether `other` is better (1), worse (−1), or neither (0), and the paired differences that say so.

    Better: of the deciding measures one or more differ from 0, with intervals for all `comparisons` of two backbones
    together, and none is below it; worse: the opposite.
    """
    found = {name: difference(start, other, name, comparisons * len(DECIDING)) for name in DECIDING}
    signs = {difference.sign for difference in found.values()} - {0}
    return (signs.pop() if len(signs) == 1 else 0), found


def can_judge(labels: Rows | None) -> bool:
    """Whether there are two classes or more with two images each."""
    return labels is not None and int((np.unique(labels, return_counts=True)[1] > 1).sum()) > 1


def count_groups(groups: Rows) -> str:
    """The number of groups of two images or more, such as "3 groups"."""
    return counted(int((np.bincount(groups) > 1).sum()), "group")


def groups_note(judge: Judge, groups: Rows | None) -> str:
    """A note that says which labelled images judge each other. groups: int64 [N], those given, even if unused."""
    if groups is None or np.bincount(groups).max() < 2:
        return "labelled images count as independent; if they come in series, say of several visits, give --groups"
    used, unused = (
        "do not judge each other",
        "count as independent, since fewer than two classes are in several groups",
    )
    return f"images of one group ({count_groups(groups)} in all) {unused if judge.groups is None else used}"


def take_groups(source: Source, spec: str | None) -> None:
    """Let the groups of a source be those of `spec`, as for `pairs.of`; an image in none is alone. Raises UserError."""
    if spec is not None:
        labels_of(source)  # raises where groups would have no use
        numbers: dict[str, int] = {}
        given = groups_of(spec, source, "--groups")
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
            several = "fewer than two classes are in several groups, so that no group can be judged by others"
            raise UserError(
                f"--groups {spec}: {several}; label images of other groups, or leave it out"
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
