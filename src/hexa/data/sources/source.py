"""The base of all sources of images, images in memory, and parts of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError, reason, some
from hexa.data.sources.decode import MAX_IMAGE_PIXELS, DecodeError, decode, largest
from hexa.data.sources.fingerprint import SAMPLED_BYTES, digest, sample, size_of
from hexa.data.sources.limits import read
from hexa.data.sources.splits import choose_split
from hexa.runtime.paths import composed
from hexa.runtime.random import Stream

Labels = NDArray[np.int64]
Part = TypeVar("Part")

#: Labels must be below this, or below the number of images: scores are kept for every class up to the highest, so a
#: damaged label would fill the memory.
_MOST_CLASSES = 100_000
#: Kinds of files that are left out and named.
_MOST_KINDS = 20
#: Images whose largest value is looked for.
_LOOKED_AT = 32
#: The value from which on 16-bit images are bright enough.
_DARK = 2**14


class Drawn(NamedTuple):
    """A part of a source that was asked for: `images` of its images, out of `of`, drawn by `seed`."""

    images: int
    of: int
    seed: int


class Source:
    """The images of one split, by position. A sub-class defines `encoded` or `decode`."""

    name: str
    """As the user gave it, without the split."""
    split: str
    """Such as train or test."""
    _splits: list[str]
    _home: str = ""
    """What makes `paths` the names of files, if they are stored one by one: their folder, with a slash."""
    _read_from: Sequence[str | Path] = ()
    """The files that images are read from otherwise; none if all images are in memory and in the fingerprint."""
    labels: Labels | None = None
    """int64 [N], one class per image; or multi-label [N, C], 1 for present, −1 for absent, 0 for difficult."""
    unlabelled: int = 0
    """Number of images without a label where others have one; `labels` is None then."""
    class_names: list[str] | None = None
    """By label."""
    paths: list[str]
    """One per image, relative to the source, for messages and tables."""
    fingerprint: str
    """Changes when the images do, independent of where they are stored and of file times; for large sources it covers
    names, sizes and a sample of the contents."""
    uniform_size: tuple[int, int] | None = None
    """(H, W) if all images are known to have it."""
    max_image_pixels: int = MAX_IMAGE_PIXELS
    """Larger images are unreadable."""
    channels: int = 3
    """Channels of every image; images with another number are unreadable."""
    grouped: Labels | None = None
    """int64 [N], the group of every image as the user gave it (`--groups`); None if not given."""
    ungrouped: int = 0
    """Number of images for which the user's groups have no entry."""
    drawn: Drawn | None = None
    """The part that these images are (`--images`); None for whole sources."""

    max_value: int | None = None
    """The value that is white in images of more than 8 bits; the highest of their type if None."""
    left_out: Mapping[str, int] = {}
    """How many files are not images that can be read, by what they are, such as a suffix."""
    unfit_labels: str = ""
    """A sentence on labels that are there and cannot be used."""

    def __len__(self) -> int:
        return len(self.paths)

    def notes(self, broken: int = 0) -> list[str]:
        """What every command that reads these images says of them; empty if there is nothing to say.

        broken: how many of them could not be read, if that is known.
        """
        notes = self._own_notes()
        if self.left_out or broken:
            notes.append(self.counted(broken))
        if self.unfit_labels:
            notes.append(f"{self.title}: no labels are used: {self.unfit_labels}")
        brightest = self._brightest()
        if brightest < _DARK:
            white = 2 ** brightest.bit_length() - 1
            notes.append(
                f"{self.title}: the largest value of these 16-bit images is {brightest:,} of 65,535, "
                f"so they come out nearly black; if {white:,} is white, give "
                f"{self.name},max_value={white}"
            )
        return notes

    def _own_notes(self) -> list[str]:
        """What a part says, too: how it was drawn, and how many of its images are in no group."""
        notes = []
        if self.drawn is not None and self.drawn.images != self.drawn.of:
            asked, count, seed = self.drawn
            evenly = "" if self.classes is None else " evenly from its classes"
            drawn = f"{asked:,} of the {count:,} images of {self.title} were drawn{evenly} (seed {seed})"
            fewer = f"{self.title} has only {count:,} images: all are used, not {asked:,}"
            notes.append(fewer if asked > count else drawn)
        if self.ungrouped:
            notes.append(
                f"--groups has no group for {self.ungrouped:,} of {len(self):,} images of "
                f"{self.title}; each of them counts as a group of its own"
            )
        return notes

    def _brightest(self) -> int:
        """The largest value in a sample of 16-bit images; `_DARK` if there are none or the user said what is white."""
        found = 0
        every = max(1, len(self) // _LOOKED_AT)
        for index in range(0, len(self) if self.max_value is None else 0, every):
            with suppress(DecodeError):
                found = max(found, largest(self.encoded(index) or b"", self.max_image_pixels))
        return found or _DARK

    def counted(self, broken: int = 0) -> str:
        """The sentence that counts the images, without the broken ones, and everything that is left out."""
        return f"{self.title}: {len(self) - broken:,} images{self._others(broken)}"

    def _others(self, broken: int = 0) -> str:
        """What is left out: broken images first, then the most frequent kinds of files."""
        kinds = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))
        counts = [("broken", broken), *kinds] if broken else kinds
        told = some((f"{count:,} {what}" for what, count in counts), most=_MOST_KINDS)
        return f"; left out: {told}" if counts else ""

    def _check_not_empty(self, where: str, remedy: str = "") -> None:
        """Raise UserError if there are no images in `where`."""
        if not self.paths:
            raise UserError(f"data '{self.name}': no images in {where}{self._others()}{remedy}")

    @property
    def title(self) -> str:
        """The name, with the split if there are several."""
        return f"{self.name}#{self.split}" if len(self._splits) > 1 else self.name

    @property
    def classes(self) -> Labels | None:
        """The labels if every image has exactly one, int64 [N]; otherwise None."""
        return self.labels if self.labels is not None and self.labels.ndim == 1 else None

    @property
    def facts(self) -> dict[str, Any]:
        """The name, split, number of images, fingerprint and part of the source, for JSON."""
        facts = {"source": self.name, "split": self.split, "images": len(self)}
        part = {} if self.drawn is None else {"drawn": self.drawn._asdict()}
        return {**facts, "fingerprint": self.fingerprint, **part}

    def splits(self) -> list[str]:
        """All splits of the source."""
        return self._splits

    def decode(self, index: int) -> Tensor:
        """Image `index` as uint8 [3, H, W], or as `hexa.data.sources.decode.decode` describes. Raises DecodeError."""
        data = self.encoded(index)
        if data is None:
            raise NotImplementedError("a source defines `encoded` or `decode`")
        return decode(data, self.max_image_pixels, self.channels, self.max_value)

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image's file, or None if images are not stored as files. Raises DecodeError."""
        return read(self._home + self.paths[index]) if self._home else None

    def files(self) -> Iterable[str | Path]:
        """Every file that images are read from; none if all images are in memory and in the fingerprint."""
        return [self._home + path for path in self.paths] if self._home else self._read_from

    def groups(self) -> Labels | None:
        """int64 [N], which images were taken together, such as at one visit or of one patient; None if nothing says so.

        As the user said, or in folders of classes by the first folder inside these, if a class has two or more. Those
        of one name in several classes are one group, and an image in none is alone.
        """
        return self.grouped

    def metadata(self, kind: str, name: str) -> list[str | None]:
        """The value of a column or key (`kind`) called `name` for each image; None where there is no value.

        Raises UserError if there is no such column or key.
        """
        raise UserError(
            f"data '{self.name}': has no {kind} '{name}': "
            "parquet sources have columns, webdatasets have keys in their .json; "
            "use those, or a CSV file of path,group"
        )

    def _open_split(self, spec: str, split: str | None, parts: Mapping[str, Part]) -> Part:
        """Set the name and the split, the first if None; returns its part. Raises UserError for an unknown split."""
        self.name = spec
        self._splits = list(parts)
        self.split = choose_split(spec, split, parts)
        return parts[self.split]

    def _identify(self, *parts: bytes) -> None:
        """Set the fingerprint of a source whose images are single files."""
        files = list(self.files())
        # over a network, asking for the sizes of a million files would take minutes
        some_files = files[:: max(1, len(files) // 10_000)]
        sizes = [size_of(file) for file in some_files]
        contents = sample(len(files), lambda row: read(files[row], SAMPLED_BYTES))
        self.fingerprint = digest(digest(*self.paths, *sizes, *parts), samples=contents)

    def _number_labels(
        self,
        what: str,
        columns: Iterable[Any],
        others: Iterable[Any] = (),
        class_names: list[str] | None = None,
    ) -> None:
        """Set `labels` and what belongs to them from Arrow arrays of labels, or `unfit_labels`.

        what: names them. others: the arrays of the other splits. class_names: of integers, by number.
        """
        from hexa.data.sources.labels import NotClasses, not_classes, numbered  # imports pyarrow

        try:
            numbers, found = numbered(columns, others)
        except NotClasses as error:
            self.unfit_labels = not_classes(what, error)
            return
        self._take_labels(numbers, found or class_names)

    def _take_labels(self, numbers: NDArray[Any], class_names: list[str] | None) -> None:
        """Set `labels`, `unlabelled` and `class_names`; `paths` must be set before.

        numbers: classes of the images that have one, in order; negative ones are hidden, as in published test splits.
        Names are ignored if there are fewer than classes. Raises UserError for impossible class numbers.
        """
        most = max(_MOST_CLASSES, len(self))
        highest = int(numbers.max()) if len(numbers) else -1
        if highest >= most:
            where = f" ({self.paths[int(numbers.argmax())]})" if len(numbers) == len(self) else ""
            raise UserError(
                f"data '{self.name}': the label {highest}{where} is not a class number from 0 to "
                f"{most - 1}; number the classes from 0, or remove the labels"
            )
        known = int((numbers >= 0).sum())
        self.labels = numbers.astype(np.int64) if known == len(self) else None
        self.unlabelled = len(self) - known if known else 0
        named = class_names is not None and highest < len(class_names) <= most
        self.class_names = list(map(composed, class_names or ())) if named else None

    def __repr__(self) -> str:
        return f"{self.title} ({len(self):,} images)"


class ArraySource(Source):
    """Images in memory, uint8 [N, C, H, W]."""

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
        self.name = name
        self.split = split
        self._splits = list(splits)
        self.labels = labels
        self.class_names = class_names
        self.paths = [f"{name}/{split}/{number:06d}" for number in range(len(images))]
        if labels is not None and labels.ndim == 1:
            self._take_labels(labels, class_names)
        _, self.channels, height, width = images.shape
        self.uniform_size = (height, width)
        known = b"" if self.labels is None else self.labels.tobytes()
        self.fingerprint = digest(images.numpy().tobytes(), known)

    def decode(self, index: int) -> Tensor:
        return self.images[index]


class Subset(Source):
    """The images of a source at positions `rows`, in that order."""

    def __init__(self, source: Source, rows: Labels) -> None:
        vars(self).update(vars(source))
        self.source = source
        self.rows = rows
        self.grouped = None
        self.ungrouped = 0
        self.labels = None if source.labels is None else source.labels[rows]
        self.paths = [source.paths[row] for row in rows]
        whole = hashlib.sha256(source.fingerprint.encode() + rows.tobytes())
        self.fingerprint = whole.hexdigest()[:16]

    def notes(self, broken: int = 0) -> list[str]:
        notes = self._own_notes()
        if broken:
            notes.append(f"{broken:,} of these {len(self):,} images cannot be read")
        return list(dict.fromkeys([*notes, *self.source.notes()]))

    def files(self) -> Iterable[str | Path]:
        files = list(self.source.files())
        of_images = len(files) == len(self.source)
        return [files[row] for row in self.rows] if of_images else files

    def groups(self) -> Labels | None:
        if self.grouped is not None:
            return self.grouped
        groups = self.source.groups()
        return None if groups is None else groups[self.rows]

    def decode(self, index: int) -> Tensor:
        return self.source.decode(int(self.rows[index]))

    def encoded(self, index: int) -> bytes | None:
        return self.source.encoded(int(self.rows[index]))


def draw_part(source: Source, images: int | None, seed: int) -> Source:
    """A part of a source: as many of its images as asked for, in order; the source itself for None or if it has fewer.

    If every image has one label, all classes have the same number of images, up to one, or all of their images if
    they have fewer. The part depends on the seed, on the labels and on the number of images alone, and a smaller part
    is within a larger one. Raises UserError for anything but a number above 0.
    """
    if images is None:
        return source
    if not isinstance(images, int) or images < 1:
        raise UserError(f"images must be an integer > 0, got {images!r}")
    generator = np.random.default_rng(Stream(seed).child("part of a source").integer())
    order = generator.permutation(len(source))
    if source.classes is not None:
        # the first of every class in the drawn order, then the second of every class, and so on
        labels = source.classes[order]
        by_class = labels.argsort(kind="stable")
        ordered = labels[by_class]
        place = np.empty_like(order)
        place[by_class] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        order = order[place.argsort(kind="stable")]
    part = Subset(source, np.sort(order[:images])) if images < len(source) else source
    part.drawn = Drawn(images, len(source), seed)
    return part


@contextmanager
def reported(failure: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever a library raises on damaged data into a UserError: `failure`, the library's words, `remedy`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers raise all sorts of exceptions on damaged bytes
        raise UserError(
            f"{failure}: {reason(error, 300) or type(error).__name__}{remedy}"
        ) from None
