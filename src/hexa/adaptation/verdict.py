"""Did it help? Two backbones on the same images, and how sure one can be of the difference."""

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
from hexa.data.source import Subset
from hexa.evaluation.features import extract
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.split import draw_per_class, folds
from hexa.nn.pretrained import Backbone
from hexa.runtime.random import Stream

#: Labelled images a class in the few-shot probes, draws of each, neighbours that vote, and parts they vote across.
SHOTS, DRAWS, NEIGHBOURS, FOLDS = (1, 2, 4, 8, 16), 5, 15, 5
#: Without labels: the agreement on neighbours must rise by this factor, and uniformity not fall by more than this.
_RISE, _LOSS = 1.25, 0.2
#: What intervals are called where they are shown.
INTERVAL = "95 %"


@dataclass(frozen=True)
class Labelled:
    """What a backbone does with labels. right: bool [N], whether the k-NN vote names each image's class.

    few: n -> accuracy of each draw, in percent, of nearest class means from n labelled images a class.
    """

    right: NDArray[np.bool_]
    few: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def knn(self) -> float:
        """Accuracy of the vote, in percent."""
        return 100 * float(self.right.mean())


def labelled_images(source: Source, most: int, notes: list[str]) -> Source:
    """The first `most` images of a source whose classes have two of them at least. Raises UserError."""
    labels = source.classes
    if labels is None:
        several = source.labels is not None
        what = "show several classes each" if several else "have no labels"
        raise UserError(f"--labelled: the images of {source!r} {what}; give class folders, or a column of labels")
    rows = np.arange(min(most, len(source)))
    names, counts = np.unique(labels[rows], return_counts=True)
    single = set(names[counts < 2].tolist())
    if len(names) - len(single) < 2:
        raise UserError(
            f"--labelled: {len(names) - len(single)} classes of {source!r} have two images or more; "
            "give two such classes at least: one image is asked what the others vote"
        )
    if single:
        notes.append(f"{len(single)} classes with a single labelled image are left out of the comparison")
    return Subset(source, rows[~np.isin(labels[rows], list(single))])


def measured(backbone: Backbone, source: Source, device: torch.device, seed: int) -> Labelled:
    """k-NN of every image by the other parts of its class-balanced folds, and few-shot probes.

    Both see features as they are, without augmentation. Draws and folds depend on labels and seed alone, so that two
    backbones are compared image by image and draw by draw.
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
        if shots < smallest:  # one image is left to ask
            draws = [draw_per_class(labels, shots, stream.child("draw", shots, number)) for number in range(DRAWS)]
            few[shots] = np.array([_nearest_mean(features, wanted, drawn) for drawn in draws])
    return Labelled(right, few)


def _nearest_mean(features: Tensor, labels: Tensor, drawn: NDArray[np.int64]) -> float:
    """Accuracy in percent, on all other images, of the class whose mean of `drawn` features is nearest.

    Features are centred on the mean of the drawn ones and brought to unit length (SimpleShot's CL2N, Wang et al. 2019).
    """
    asked = torch.ones(len(labels), dtype=torch.bool)
    asked[drawn] = False
    x = functional.normalize(features - features[drawn].mean(0), dim=1)
    classes, place = torch.unique(labels[drawn], return_inverse=True)
    means = torch.zeros(len(classes), x.shape[1]).index_add_(0, place, x[drawn])
    found = classes[(x[asked] @ functional.normalize(means, dim=1).T).argmax(1)]
    return 100 * float((found == labels[asked]).double().mean())


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
    found = of_images(start.right, result.right)
    if found.points > found.half:
        return True, f"it helped: k-NN {start.knn:.1f} → {result.knn:.1f} % ({found} points)"
    if found.points < -found.half:
        return False, f"not better; the start is kept: k-NN {start.knn:.1f} → {result.knn:.1f} % ({found} points)"
    why = f"k-NN {start.knn:.1f} → {result.knn:.1f} %, {found} points on {len(start.right)} labelled images"
    return False, f"not better; the start is kept: no difference that these labels could show ({why})"


def without_labels(start: Mapping[str, float], result: Mapping[str, float]) -> tuple[bool, str]:
    """Whether the result is better as far as can be said without labels, and a sentence on it.

    Views must agree clearly more on an image's neighbours, which training alone brings about, and features must not
    draw together, which is how it goes wrong. docs/your-own-images.md says how often that was right.
    """
    before, after = start["neighbours"], result["neighbours"]
    lost = start["uniformity"] - result["uniformity"]
    better = after >= _RISE * before and lost <= _LOSS
    found = (
        f"neighbours {before:.1f} → {after:.1f} %, uniformity {start['uniformity']:.2f} → {result['uniformity']:.2f}"
    )
    said = "it seems to have helped" if better else "it does not seem to have helped; the start is kept"
    return better, f"{said}: {found}; some labelled images would tell (--labelled)"


def table(
    start: Mapping[str, float], result: Mapping[str, float], labels: tuple[Labelled, Labelled] | None
) -> list[list[str]]:
    """Rows of (measure, start, result, difference), labelled ones first."""
    rows = []
    if labels is not None:
        a, b = labels
        rows.append(["k-NN, %", f"{a.knn:.1f}", f"{b.knn:.1f}", str(of_images(a.right, b.right))])
        for shots in a.few:
            name = f"{shots} label{'s' if shots > 1 else ''} a class, %"
            shown = [f"{x.few[shots].mean():.1f} ± {x.few[shots].std(ddof=1):.1f}" for x in labels]
            rows.append([name, *shown, str(of_draws(a.few[shots], b.few[shots]))])
    for name in start:
        if name != "knn" and name in result:
            pair = start[name], result[name]
            rows.append([f"{name}, no labels", *(f"{value:.2f}" for value in pair), f"{pair[1] - pair[0]:+.2f}"])
    return rows
