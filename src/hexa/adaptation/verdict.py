"""Decides whether an adaptation helped: two backbones on the same images, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hexa.config import UserError
from hexa.data import Source
from hexa.data.sources.source import Subset
from hexa.evaluation.features import extract
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.split import draw_per_class, folds
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Labelled images per class in few-shot probes, draws of each, neighbours that vote, and folds of the k-NN vote.
SHOTS, DRAWS, NEIGHBOURS, FOLDS = (1, 2, 4, 8, 16), 5, 15, 5
#: Without labels: neighbour agreement must rise by this factor, and uniformity must not fall by more than this.
_RISE, _LOSS = 1.25, 0.2
#: How tables name the intervals.
INTERVAL = "95 %"


@dataclass(frozen=True)
class Labelled:
    """Results of a backbone on labelled images.

    right: bool [N], whether the k-NN vote is right for each image. few: n -> accuracy in percent, one per draw, of
    nearest class means from n labelled images per class.
    """

    right: NDArray[np.bool_]
    few: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def knn(self) -> float:
        """Accuracy of the k-NN vote in percent."""
        return 100 * float(self.right.mean())


def labelled_images(source: Source, most: int, notes: list[str]) -> Source:
    """The first `most` images of a source, without classes of a single image. Raises UserError."""
    labels = source.classes
    if labels is None:
        problem = "have no labels" if source.labels is None else "are multi-label"
        raise UserError(f"--labelled: the images of {source!r} {problem}; give class folders, or a column of labels")
    rows = np.arange(min(most, len(source)))
    names, counts = np.unique(labels[rows], return_counts=True)
    single = set(names[counts < 2].tolist())
    if len(names) - len(single) < 2:
        raise UserError(
            f"--labelled: {len(names) - len(single)} classes of {source!r} have two images or more; "
            "give at least two such classes"
        )
    if single:
        notes.append(f"{len(single)} classes with a single labelled image are left out of the comparison")
    return Subset(source, rows[~np.isin(labels[rows], list(single))])


def measured(backbone: Backbone, source: Source, device: torch.device, seed: int) -> Labelled:
    """k-NN of every image against the other class-balanced folds, and few-shot probes; without augmentation.

    Draws and folds depend on labels and seed alone, so that two backbones are compared image by image and draw by draw.
    """
    features, wanted, _ = extract(backbone, source, device=device, tolerance=1.0)
    assert wanted is not None
    labels, classes = wanted.numpy(), int(wanted.max()) + 1
    stream = Stream(seed).child("verdict")
    right = np.zeros(len(labels), dtype=np.bool_)
    for part in folds(labels, FOLDS, stream):
        rest = np.setdiff1d(np.arange(len(labels)), part)
        votes = knn_classify(features[rest], wanted[rest], features[part], NEIGHBOURS, num_classes=classes)
        right[part] = (votes.argmax(1) == wanted[part]).numpy()
    smallest = int(np.unique(labels, return_counts=True)[1].min())
    few = {}
    for shots in SHOTS:
        if shots < smallest:  # at least one image is left to classify
            draws = [draw_per_class(labels, shots, stream.child("draw", shots, number)) for number in range(DRAWS)]
            few[shots] = np.array([_nearest_mean(features, wanted, drawn) for drawn in draws])
    return Labelled(right, few)


def _nearest_mean(features: Tensor, labels: Tensor, drawn: NDArray[np.int64]) -> float:
    """Accuracy in percent, on all other images, of the nearest class mean of the `drawn` features.

    Features are centred on the mean of the drawn ones and normalised to unit length (SimpleShot's CL2N, Wang et al.
    2019).
    """
    queries = torch.ones(len(labels), dtype=torch.bool)
    queries[drawn] = False
    x = functional.normalize(features - features[drawn].mean(0), dim=1)
    classes, place = torch.unique(labels[drawn], return_inverse=True)
    means = torch.zeros(len(classes), x.shape[1]).index_add_(0, place, x[drawn])
    predicted = classes[(x[queries] @ functional.normalize(means, dim=1).T).argmax(1)]
    return 100 * float((predicted == labels[queries]).double().mean())


@dataclass(frozen=True)
class Difference:
    """A difference in percentage points, and the half width of its 95 % interval."""

    points: float
    half: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} ± {self.half:.1f}"


def of_images(start: NDArray[np.bool_], result: NDArray[np.bool_]) -> Difference:
    """result − start, paired by image: mean d ± 1.96 s / √N."""
    d = 100 * (result.astype(float) - start.astype(float))
    return Difference(float(d.mean()), float(1.96 * d.std(ddof=1) / len(d) ** 0.5) if len(d) > 1 else float("inf"))


def of_draws(start: NDArray[np.float64], result: NDArray[np.float64]) -> Difference:
    """result − start, paired by draw: mean d ± t(n − 1) s / √n."""
    d = result - start
    return Difference(float(d.mean()), half_width(d))


def by_labels(start: Labelled, result: Labelled) -> tuple[bool, str]:
    """Whether the result is better, and a sentence on it: the k-NN difference must be above 0 with 95 % confidence."""
    difference = of_images(start.right, result.right)
    scores = f"k-NN {start.knn:.1f} → {result.knn:.1f} %"
    if difference.points > difference.half:
        return True, f"it helped: {scores} ({difference} points)"
    if difference.points < -difference.half:
        return False, f"not better; the start is kept: {scores} ({difference} points)"
    why = f"{scores}, {difference} points on {len(start.right)} labelled images"
    return False, f"not better; the start is kept: these labels show no significant difference ({why})"


def without_labels(
    start: Mapping[str, float], result: Mapping[str, float], sizes: tuple[int, int] = (0, 0)
) -> tuple[bool, str]:
    """Judge by measures without labels: whether the result seems better than the start, and a sentence that says why.

    sizes: the image sizes of start and result. Where they differ the start is kept: both are measured at the result's,
    at which the start may be far from its best. Otherwise the result is better if views of an image agree clearly more
    on its neighbours, and features have not contracted, which is a sign of failure. docs/your-own-images.md says how
    often this was right.
    """
    before, after = start["neighbours"], result["neighbours"]
    lost = start["uniformity"] - result["uniformity"]
    better = after >= _RISE * before and lost <= _LOSS
    uniformity = f"uniformity {start['uniformity']:.2f} → {result['uniformity']:.2f}"
    scores = f"neighbours {before:.1f} → {after:.1f} %, {uniformity}"
    if sizes[0] != sizes[1]:
        said = f"without labels nothing shows that training at {sizes[1]} px helped a start of {sizes[0]} px"
        return False, f"{said}; the start is kept: {scores}, both at {sizes[1]} px; give labelled images (--labelled)"
    conclusion = "it seems to have helped" if better else "it does not seem to have helped; the start is kept"
    return better, f"{conclusion}: {scores}; labelled images (--labelled) would show it reliably"


def table(
    start: Mapping[str, float], result: Mapping[str, float], labels: tuple[Labelled, Labelled] | None
) -> list[list[str]]:
    """Rows of (measure, start, result, difference), labelled ones first."""
    rows = []
    if labels is not None:
        a, b = labels
        rows.append(["k-NN, %", f"{a.knn:.1f}", f"{b.knn:.1f}", str(of_images(a.right, b.right))])
        for shots in a.few:
            name = f"{shots} label{'s' if shots > 1 else ''} per class, %"
            shown = [f"{x.few[shots].mean():.1f} ± {x.few[shots].std(ddof=1):.1f}" for x in labels]
            rows.append([name, *shown, str(of_draws(a.few[shots], b.few[shots]))])
    for name in start:
        if name != "knn" and name in result:
            pair = start[name], result[name]
            rows.append([f"{name}, no labels", *(f"{value:.2f}" for value in pair), f"{pair[1] - pair[0]:+.2f}"])
    return rows
