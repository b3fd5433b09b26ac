"""The base class of sources, images in memory, and parts of a source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError, reason, some
from hexa.data.sources.decode import MAX_IMAGE_PIXELS, DecodeError, decode, largest, read
from hexa.data.sources.splits import choose_split
from hexa.runtime.paths import composed
from hexa.runtime.random import Stream

Labels = NDArray[np.int64]
Part = TypeVar("Part")

#: Upper bound on class numbers, unless there are more images. Scores exist for every class number up to the highest, so
#: that a damaged label would fill the memory.
_MOST_CLASSES = 100_000
#: Maximum number of kinds of left-out files in a message.
_MOST_KINDS = 20
#: Bytes of each sampled file in a fingerprint: all of a photograph, the beginning of a scan of gigabytes.
SAMPLED_BYTES = 4 << 20
#: Images whose largest value is looked for.
_LOOKED_AT = 32
#: A note warns about 16-bit images whose largest value is below this.
_DARK = 2**14


class Drawn(NamedTuple):
    """A requested part of a source: `images` of its `of` images, drawn by `seed`."""

    images: int
    of: int
    seed: int


class Source:
    """The images of one split, by position. A sub-class defines `encoded` or `decode`."""

    name: str
    """Name of the source as given by the user, without the split."""
    split: str
    """Split, such as train or test."""
    splits: list[str]
    """All splits of the source."""
    _home: str = ""
    """Folder of the image files, with a slash at the end; empty if images are not single files."""
    _read_from: Sequence[str | Path] = ()
    """Files that hold the images, if images are not single files; empty if all images are in memory."""
    labels: Labels | None = None
    """Classes int64 [N]; or multi-labels [N, C] with 1 for present, −1 for absent, 0 for difficult; None without labels."""
    unlabelled: int = 0
    """Number of images without a label if other images have labels; `labels` is then None."""
    class_names: list[str] | None = None
    """Names of the classes, by class number; None if unknown."""
    paths: list[str]
    """Path of each image, relative to the source."""
    fingerprint: str
    """Digest of the images, independent of their location and of file times. For large sources, it covers names, sizes
    and a sample of the contents."""
    uniform_size: tuple[int, int] | None = None
    """Common size (H, W) of all images; None if unknown."""
    max_image_pixels: int = MAX_IMAGE_PIXELS
    """Images with more pixels are unreadable."""
    channels: int = 3
    """Number of channels; images with another number are unreadable."""
    grouped: Labels | None = None
    """Group of every image by --groups, int64 [N] (default: None, no groups by the user)."""
    ungrouped: int = 0
    """Number of images without an entry in --groups."""
    drawn: Drawn | None = None
    """Drawn part of the source (`--images`); None for a whole source."""

    max_value: int | None = None
    """Value of white in images of more than 8 bits (default: the maximum of their type)."""
    left_out: Mapping[str, int] = {}
    """Numbers of files that are not readable images, by kind, such as a suffix."""
    unfit_labels: str = ""
    """Reason why existing labels cannot be used; empty if there is none."""
    no_labels: str = "give two or more class folders, or a column called label"
    """Remedy for missing labels if no label exists."""

    def __len__(self) -> int:
        return len(self.paths)

    def notes(self, broken: int = 0) -> list[str]:
        """Return notes on the images for the user.

        broken: number of unreadable images, if known.
        """
        notes = self._own_notes()
        if self.left_out or broken:
            notes.append(self.counted(broken))
        if self.unfit_labels or self.unlabelled:
            why = self.why_unlabelled
            notes.append(f"{self.title}: the labels are ignored, because {why}")
        brightest = self._brightest()
        if brightest < _DARK:
            white = 2 ** brightest.bit_length() - 1
            notes.append(
                f"{self.title}: the largest value of these 16-bit images is {brightest:,} of 65,535, "
                f"so they appear nearly black; if {white:,} is white, give "
                f"{self.name},max_value={white}"
            )
        return notes

    def _own_notes(self) -> list[str]:
        """Return the notes that also apply to a part: the draw, and images without a group."""
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
        """Return the largest value in a sample of 16-bit images; `_DARK` without such images or if max_value is set."""
        found = 0
        every = max(1, len(self) // _LOOKED_AT)
        for index in range(0, len(self) if self.max_value is None else 0, every):
            with suppress(DecodeError):
                found = max(found, largest(self.encoded(index) or b"", self.max_image_pixels))
        return found or _DARK

    def counted(self, broken: int = 0) -> str:
        """Return a sentence with the numbers of readable images and of left-out files."""
        return f"{self.title}: {len(self) - broken:,} images{self._others(broken)}"

    def _others(self, broken: int = 0) -> str:
        """Return the end of a sentence with the numbers of broken images and of left-out files, most frequent first."""
        kinds = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))
        counts = [("broken", broken), *kinds] if broken else kinds
        told = some((f"{count:,} {what}" for what, count in counts), most=_MOST_KINDS)
        return f"; left out: {told}" if counts else ""

    def _check_not_empty(self, where: str, remedy: str = "") -> None:
        """Raise UserError if the source, read from `where`, has no images."""
        if not self.paths:
            raise UserError(f"data '{self.name}': no images in {where}{self._others()}{remedy}")

    @property
    def whole(self) -> Source:
        """The source itself, or the source that a part was taken from."""
        return self

    @property
    def title(self) -> str:
        """Name of the source, with the split if there are several."""
        return f"{self.name}#{self.split}" if len(self.splits) > 1 else self.name

    @property
    def has_test(self) -> bool:
        """True if the source has a split `test`, or `val` to replace it."""
        return not {"test", "val"}.isdisjoint(self.splits)

    @property
    def classes(self) -> Labels | None:
        """Classes int64 [N] if every image has exactly one class; otherwise None."""
        return self.labels if self.labels is not None and self.labels.ndim == 1 else None

    @property
    def why_unlabelled(self) -> str:
        """Reason why `labels` is None, with a remedy."""
        if self.unlabelled:
            share = f"{self.unlabelled:,} of {len(self.whole):,} images"
            return f"a label is missing or negative for {share}; label all images"
        return self.unfit_labels or self.no_labels

    @property
    def facts(self) -> dict[str, Any]:
        """Name, split, number of images, fingerprint and drawn part, for JSON."""
        facts = {"source": self.name, "split": self.split, "images": len(self)}
        part = {} if self.drawn is None else {"drawn": self.drawn._asdict()}
        return {**facts, "fingerprint": self.fingerprint, **part}

    def decode(self, index: int) -> Tensor:
        """Return image `index` as uint8 [3, H, W], or in another form of `decode`. Raises DecodeError."""
        data = self.encoded(index)
        if data is None:
            raise NotImplementedError("a source defines `encoded` or `decode`")
        return decode(data, self.max_image_pixels, self.channels, self.max_value)

    def encoded(self, index: int) -> bytes | None:
        """Return the contents of the image's file; None if images are not files. Raises DecodeError."""
        return read(self._home + self.paths[index]) if self._home else None

    def files(self) -> Iterable[str | Path]:
        """Return every file that images are read from; an empty list if all images are in memory."""
        return [self._home + path for path in self.paths] if self._home else self._read_from

    def groups(self) -> Labels | None:
        """Return the group of each image, such as a session or patient, int64 [N]; None without groups.

        Groups of the user come first. Otherwise, sub-folders of class folders are groups if a class has two or more of
        them. Sub-folders of one name in several classes are one group. An image without a group is a group of its own.
        """
        return self.grouped

    def metadata(self, kind: str, name: str) -> list[str | None]:
        """Return the value of the column or key (`kind`) `name` for each image; None if the value is missing.

        Raises UserError if the source has no such column or key.
        """
        raise UserError(
            f"data '{self.name}': has no {kind} '{name}': "
            "parquet sources have columns, webdatasets have keys in .json files; give one of these, or a CSV file of path,group"
        )

    def _open_split(self, spec: str, split: str | None, parts: Mapping[str, Part]) -> Part:
        """Set name and split (default: the first split), and return the part. Raises UserError for an unknown split."""
        self.name = spec
        self.splits = list(parts)
        self.split = choose_split(spec, split, parts)
        return parts[self.split]

    def _identify(self, *parts: bytes) -> None:
        """Set the fingerprint of a source of single files."""
        files = list(self.files())
        # over a network, reading the sizes of a million files takes minutes
        some_files = files[:: max(1, len(files) // 10_000)]
        sizes = [_size_of(file) for file in some_files]
        contents = sample(len(files), lambda row: read(files[row], SAMPLED_BYTES))
        self.fingerprint = digest(digest(*self.paths, *sizes, *parts), samples=contents)

    def _number_labels(
        self,
        what: str,
        columns: Iterable[Any],
        others: Iterable[Any],
        class_names: list[str] | None = None,
    ) -> None:
        """Set labels and class names from Arrow arrays, or set `unfit_labels`.

        what: name of the labels in messages. others: arrays of the other splits. class_names: names of integer labels,
        by class number.
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

        numbers: class numbers of the images that have one, in order; a negative number is a hidden label, as in
        published test splits. Names are ignored if there are fewer names than classes. Raises UserError for impossible
        class numbers.
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
    """A source of images in memory, uint8 [N, C, H, W]."""

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
        self.splits = list(splits)
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
    """The images of a source at positions `rows`, in the order of `rows`."""

    def __init__(self, source: Source, rows: Labels) -> None:
        vars(self).update(vars(source))
        self.source = source
        self.rows = rows
        self.grouped = None if source.grouped is None else source.grouped[rows]
        self.ungrouped = 0
        self.labels = None if source.labels is None else source.labels[rows]
        self.paths = [source.paths[row] for row in rows]
        whole = hashlib.sha256(source.fingerprint.encode() + rows.tobytes())
        self.fingerprint = whole.hexdigest()[:16]

    @property
    def whole(self) -> Source:
        return self.source.whole

    def notes(self, broken: int = 0) -> list[str]:
        notes = self._own_notes()
        if broken:
            notes.append(f"{broken:,} of {len(self):,} images cannot be read")
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
    """Draw `images` images of a source, in order; return the source itself for None or if it has fewer images.

    If every image has one label, classes have equal numbers of images (± 1); a smaller class has all of its images. The
    part depends only on seed, labels and number of images, and a smaller part is contained in a larger part. Raises
    UserError unless `images` is an integer above 0.
    """
    if images is None:
        return source
    if not isinstance(images, int) or images < 1:
        raise UserError(f"images must be an integer > 0, got {images!r}")
    generator = np.random.default_rng(Stream(seed).child("part of a source").integer())
    order = generator.permutation(len(source))
    if source.classes is not None:
        # the first image of every class in the drawn order, then the second image of every class, and so on
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
    """Turn any exception of a library into a UserError of `failure`, the message of the library, and `remedy`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers raise any exception on damaged bytes
        raise UserError(
            f"{failure}: {reason(error, 300) or type(error).__name__}{remedy}"
        ) from None


# -- fingerprints: digests of names, sizes and a sample of the contents ---------------------------


def digest(*parts: bytes | str, samples: Iterable[bytes] = (), separator: bytes = b"\0") -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of these parts.

    samples: further, large parts, one at a time in memory; each is followed by the separator.
    """
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
        hashed.update(b"\0")
    for content in samples:
        hashed.update(content)
        hashed.update(separator)
    return hashed.hexdigest()[:16]


def sample(count: int, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the contents of about a hundred of `count` images, evenly spread, for a fingerprint."""
    for index in range(0, count, max(1, count // 100)):
        try:
            yield read(index)
        except DecodeError as error:
            yield str(error).encode(errors="replace")


def _size_of(file: str | Path) -> str:
    """Return the size of a file in bytes, as text."""
    with suppress(OSError):
        return str(os.path.getsize(file))
    return "absent"
