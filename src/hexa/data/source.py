"""What a source of images is, and what all sources share: splits by name, fingerprints."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError
from hexa.data import bands
from hexa.data import decode as decoding

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

#: A label is a class number below this, or below the number of images: scores are kept for every class up to the
#: highest, so that a damaged one would take all memory.
_MOST_CLASSES = 100_000
#: How much of each file of the sample goes into a fingerprint: photographs whole, scans of gigabytes not.
SAMPLED_BYTES = 4 << 20


class Source(ABC):
    """Images of one split, by position, undecoded.

    name: as the user gave it, without the split. labels: int64 [N], a class each; or [N, C] where an image shows
    several, 1 for present, −1 for absent, 0 for difficult; or None. unlabelled: how many images have no label although
    others have one, in which case `labels` is None. class_names: by label, or None. paths: one per image, in the words
    of the source, for messages and tables. fingerprint: changes when the images do, the same wherever they lie and
    whatever the times of the files; of large sources it sees names, sizes and a sample of the contents.
    former_fingerprint: by which hexa 0.1 knew them, where that was another (names and sizes alone). uniform_size:
    (H, W) if it is known that all images have it. max_image_pixels: images of more are unreadable. channels: those of
    every image, images of another number are unreadable.
    """

    name: str
    split: str
    labels: Labels | None = None
    unlabelled: int = 0
    class_names: list[str] | None = None
    paths: list[str]
    fingerprint: str
    former_fingerprint: str | None = None
    uniform_size: tuple[int, int] | None = None
    max_image_pixels: int = decoding.MAX_IMAGE_PIXELS
    channels: int = 3

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> Labels | None:
        """The labels where each image has exactly one, int64 [N]; None where it has several or none."""
        return self.labels if self.labels is not None and self.labels.ndim == 1 else None

    @abstractmethod
    def splits(self) -> list[str]:
        """The splits there are."""

    def decode(self, index: int) -> Tensor:
        """Image `index` as uint8 [3, H, W], or as `hexa.data.bands.decode` says. Raises DecodeError."""
        data = self.encoded(index)
        assert data is not None, "a source keeps the files of its images, or has a `decode` of its own"
        return bands.decode(data, self.max_image_pixels, self.channels)

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image's file, or None where images are not kept as files. Raises DecodeError as well."""
        return None

    def files(self) -> Iterable[str | Path]:
        """Every file that images are read from; none where all of them are in memory and in the fingerprint."""
        return ()

    def metadata(self, kind: str, name: str) -> list[str | None]:
        """What the source says of each image by its column or key (`kind`) of this name; None where it says nothing.

        Raises UserError where there is no such thing.
        """
        where = "parquet sources have columns, webdatasets keys of their .json"
        raise UserError(f"data '{self.name}': has no {kind} '{name}': {where}; a CSV file of paths and groups does too")

    def version(self) -> str:
        """The fingerprint with sizes and times of all files, for what is kept on this machine: any replaced file shows.

        Looks at every file, which takes some three seconds for a million on a local disk.
        """
        return digest(self.fingerprint, *map(_stamp, self.files()))

    def boxes(self, index: int) -> Boxes | None:
        """Where the objects of the image are, or None where the source does not know. Raises UserError."""
        return None

    def _identify(self, *parts: bytes) -> None:
        """Set the fingerprints, where each image is a file of its own."""
        files = list(self.files())
        # over a network, asking for the sizes of a million files takes minutes
        sizes = [_stamp(file).partition(" ")[0] for file in files[:: max(1, len(files) // 10_000)]]
        self.former_fingerprint = digest(*self.paths, *sizes, *parts)
        contents = sample(len(files), lambda index: decoding.read(files[index], SAMPLED_BYTES))
        self.fingerprint = digest(self.former_fingerprint, *contents)

    def _take_labels(self, told: NDArray[Any], class_names: list[str] | None) -> None:
        """Set `labels`, `unlabelled` and `class_names`, once the images are counted.

        told: class numbers of the images that have one, in order; negative ones are hidden, as in published test
        splits. Names that are fewer than the classes are left out. Raises UserError for what cannot be a class number.
        """
        most = max(_MOST_CLASSES, len(self))
        highest = int(told.max()) if len(told) else -1
        if highest >= most:
            where = f" ({self.paths[int(told.argmax())]})" if len(told) == len(self) else ""
            raise UserError(
                f"data '{self.name}': the label {highest}{where} is not a class number from 0 to {most - 1}; "
                "number the classes from 0, or leave the labels out"
            )
        known = int((told >= 0).sum())
        self.labels = told.astype(np.int64) if known == len(self) else None
        self.unlabelled = len(self) - known if known else 0
        self.class_names = class_names if class_names and highest < len(class_names) <= most else None

    def __repr__(self) -> str:
        return f"{self.name}#{self.split} ({len(self):,} images)"


class ArraySource(Source):
    """Images that are in memory already, uint8 [N, C, H, W]."""

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
        if labels is not None and labels.ndim == 1:
            self._take_labels(labels, class_names)
        self.channels, *size = images.shape[1:]
        self.uniform_size = (size[0], size[1])
        self.fingerprint = digest(images.numpy().tobytes(), b"" if labels is None else labels.tobytes())

    def splits(self) -> list[str]:
        return self._splits

    def decode(self, index: int) -> Tensor:
        return self.images[index]


class Subset(Source):
    """Some images of a source, in this order."""

    def __init__(self, source: Source, rows: Labels) -> None:
        self.source, self.rows = source, rows
        self.name, self.split, self.class_names = source.name, source.split, source.class_names
        self.labels = None if source.labels is None else source.labels[rows]
        self.paths = [source.paths[row] for row in rows]
        self.uniform_size, self.max_image_pixels = source.uniform_size, source.max_image_pixels
        self.channels = source.channels
        self.fingerprint = hashlib.sha256(source.fingerprint.encode() + rows.tobytes()).hexdigest()[:16]

    def splits(self) -> list[str]:
        return self.source.splits()

    def files(self) -> Iterable[str | Path]:
        return self.source.files()

    def decode(self, index: int) -> Tensor:
        return self.source.decode(int(self.rows[index]))

    def boxes(self, index: int) -> Boxes | None:
        return self.source.boxes(int(self.rows[index]))


def choose_split(spec: str, split: str | None, there: Iterable[str]) -> str:
    known = list(there)
    if not known:
        raise UserError(f"data '{spec}': has no split")
    if split is None:
        return known[0]
    if split not in known:
        raise UserError(
            f"data '{spec}': no split '{split}'; there {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
        )
    return split


def by_split(names: Iterable[str]) -> dict[str, str]:
    """The split each of these names stands for, train and test first: {split: name}. UserError for two of one."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(SPLIT_NAMES.get(name.lower(), name), name)
        if other != name:
            raise UserError(f"'{other}' and '{name}' beside each other both name one split; rename or move one of them")
    if "val" in found and "test" not in found:
        found["test"] = found.pop("val")
    return dict(sorted(found.items(), key=lambda item: (item[0] != "train", item[0] != "test", item[0])))


def location(argument: str) -> Path:
    """What a user wrote as a path, which may begin with ~."""
    return Path(os.path.expanduser(argument))


def sample(count: int, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """About a hundred of `count` images spread over them, so that a fingerprint sees contents and not sizes alone."""
    for index in range(0, count, max(1, count // 100)):
        try:
            yield read(index)
        except decoding.DecodeError as error:
            yield str(error).encode(errors="replace")


def _stamp(file: str | Path) -> str:
    """Size and times of a file. That of its last change of any kind shows a file that was put in with an old date."""
    try:
        found = os.stat(file)
    except OSError:
        return "absent"
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def digest(*parts: bytes | str) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
        hashed.update(b"\0")
    return hashed.hexdigest()[:16]
