"""Published results as data, and which recipe they belong to (REFERENCE §8.1)."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "linear classification, ResNet-50; top-1 in percent (VOC07: mAP of SVMs)"
COLUMNS = ("ImageNet", "VOC07", "CIFAR-10", "CIFAR-100")


@dataclass(frozen=True)
class Row:
    """One published row: percent, None where nothing was reported. epochs is None for supervised training and such."""

    method: str
    epochs: int | None
    imagenet: float | None
    voc07: float | None = None
    cifar10: float | None = None
    cifar100: float | None = None

    @property
    def values(self) -> tuple[float | None, ...]:
        """In the order of COLUMNS."""
        return (self.imagenet, self.voc07, self.cifar10, self.cifar100)


LINEAR = (
    Row("Supervised", None, 76.5, 87.5, 93.6, 78.3),
    Row("InstDisc", 200, 54.0),
    Row("Jigsaw", 90, 45.7, 64.5),
    Row("BigBiGAN", None, 56.6),
    Row("CPC-v2", 200, 63.8),
    Row("CMC", 200, 66.2),
    Row("SimCLR", 200, 61.9),
    Row("SimCLR", 1000, 69.3, 80.5, 90.6, 71.6),
    Row("MoCo", 200, 60.6, 79.2),
    Row("PIRL", 800, 63.6, 81.1),
    Row("PCL-v2", 200, 67.6, 85.4),
    Row("BYOL", 800, 74.3, None, 91.3, 78.4),
    Row("SwAV (B=256)", 200, 72.7, 87.5, 91.8, 74.2),
    Row("SwAV (B=4096)", 200, 73.9, 87.9, 92.0, 76.0),
    Row("SwAV (B=4096)", 800, 75.3, 88.1, 93.1, 77.0),
    Row("InfoMin", 200, 70.1),
    Row("InfoMin", 800, 73.0),
    Row("MoCo-v2", 200, 67.5, 84.5, 89.4, 70.1),
    Row("HEXA-MoCo", 200, 68.9, 85.0, 90.4, 71.5),
    Row("MoCo-v2", 800, 71.1, 86.8, 90.6, 71.8),
    Row("HEXA-MoCo", 800, 71.7, 87.0, 91.5, 73.2),
    Row("DeepCluster-v2", 200, 67.6, 85.4, 89.6, 70.9),
    Row("HEXA-D", 200, 68.1, 85.9, 90.7, 71.5),
    Row("HEXA-D (8-crop)", 200, 74.0, 88.1, 92.9, 76.6),
    Row("HEXA-D+ (8-crop)", 200, 73.4, 88.8, 91.9, 75.2),
    Row("DeepCluster-v2 (8-crop)", 800, 75.2, 87.6, 93.2, 77.3),
    Row("HEXA-D (8-crop)", 800, 75.5, 87.9, 93.4, 78.6),
    Row("HEXA-D+ (8-crop)", 800, 75.1, 88.2, 93.5, 78.0),
)
"""The table of REFERENCE §8.1, in its order."""

COUNTERPARTS = {
    "imagenet-moco-v2-200": ("MoCo-v2", 200),
    "imagenet-moco-v2-800": ("MoCo-v2", 800),
    "imagenet-hexa-moco-200": ("HEXA-MoCo", 200),
    "imagenet-hexa-moco-800": ("HEXA-MoCo", 800),
}
"""The published row that a recipe sets out to repeat. A recipe that is not here has no published counterpart."""

_SIBLINGS = {"MoCo-v2": "HEXA-MoCo", "HEXA-MoCo": "MoCo-v2"}


def counterpart(recipe: str) -> Row | None:
    """The published row that `recipe` repeats; None if there is none."""
    named = COUNTERPARTS.get(recipe)
    return next((row for row in LINEAR if (row.method, row.epochs) == named), None)


def rows_for(recipe: str) -> list[Row]:
    """The counterpart of `recipe`, with the same method without (or with) hard examples and the supervised network.

    In the order of the published table; empty for a recipe without a counterpart.
    """
    own = counterpart(recipe)
    if own is None:
        return []
    shown = {("Supervised", None), (own.method, own.epochs), (_SIBLINGS.get(own.method), own.epochs)}
    return [row for row in LINEAR if (row.method, row.epochs) in shown]
