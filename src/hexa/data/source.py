"""What a source of images is, and what all sources share: splits by name, fingerprints."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Boxes:
    """The objects of one image of (height, width) pixels.

    boxes: float32 [n, 4], x0, y0, x1, y1 in pixels from the upper left corner of the image, so that x1 − x0 is a width.
    labels: int64 [n], places in the source's class_names. difficult: bool [n].
    """

    boxes: Tensor
    labels: Tensor
    difficult: Tensor
    size: tuple[int, int]


# What splits are called elsewhere. A validation split serves as `test` where there is no other.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "unlabeled": "unlabeled",
    "unlabelled": "unlabeled",
}


class Source(ABC):
    """Images of one split, by position, undecoded.

    name: as the user gave it, without the split. labels: int64 [N], a class each; or [N, C] where an image shows
    several, 1 for present, −1 for absent, 0 for difficult; or None. class_names: by label, or None. paths: one per
    image, in the words of the source, for messages and tables. fingerprint: changes when the images do, the same
    wherever they lie. uniform_size: (H, W) if it is known that all images have it.
    """

    name: str
    split: str
    labels: Labels | None = None
    class_names: list[str] | None = None
    paths: list[str]
    fingerprint: str
    uniform_size: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> Labels | None:
        """The labels where each image has exactly one, int64 [N]; None where it has several or none."""
        return self.labels if self.labels is not None and self.labels.ndim == 1 else None

    @abstractmethod
    def splits(self) -> list[str]:
        """The splits there are."""

    @abstractmethod
    def decode(self, index: int) -> Tensor:
        """Image `index` as uint8 [3, H, W]. Raises `hexa.data.decode.DecodeError` if it cannot be read."""

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image's file, or None where images are not kept as files."""
        return None

    def boxes(self, index: int) -> Boxes | None:
        """Where the objects of the image are, or None where the source does not know. Raises UserError."""
        return None

    def __repr__(self) -> str:
        return f"{self.name}#{self.split} ({len(self):,} images)"


class ArraySource(Source):
    """Images that are in memory already, uint8 [N, 3, H, W]."""

    def __init__(
        self,
        images: Tensor,
        labels: Labels | None = None,
        class_names: list[str] | None = None,
        *,
        name: str = "arrays",
        split: str = "train",
        splits: Sequence[str] = ("train",),
    ) -> None:
        self.images = images
        self.name, self.split, self._splits = name, split, list(splits)
        self.labels, self.class_names = labels, class_names
        self.paths = [f"{name}/{split}/{number:06d}" for number in range(len(images))]
        self.uniform_size = (int(images.shape[2]), int(images.shape[3]))
        self.fingerprint = digest(images.numpy().tobytes(), b"" if labels is None else labels.tobytes())

    def splits(self) -> list[str]:
        return self._splits

    def decode(self, index: int) -> Tensor:
        return self.images[index]


def choose_split(spec: str, split: str | None, there: Iterable[str]) -> str:
    known = list(there)
    if split is None:
        return known[0]
    if split not in known:
        raise UserError(
            f"data '{spec}': no split '{split}'; there {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
        )
    return split


def by_split(names: Iterable[str]) -> dict[str, str]:
    """The split each of these names stands for, train and test first: {split: name}."""
    found = {SPLIT_NAMES.get(name.lower(), name): name for name in sorted(names, reverse=True)}
    if "val" in found and "test" not in found:
        found["test"] = found.pop("val")
    return dict(sorted(found.items(), key=lambda item: (item[0] != "train", item[0] != "test", item[0])))


def digest(*parts: bytes | str) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
        hashed.update(b"\0")
    return hashed.hexdigest()[:16]
