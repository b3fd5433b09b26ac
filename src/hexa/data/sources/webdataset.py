"""Images in tar shards, as WebDataset writes them."""

from __future__ import annotations

import glob
import io
import itertools
import json
import math
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hexa.config import UserError, reason
from hexa.data.sources import decode as decoding
from hexa.data.sources.labels import of_values
from hexa.data.sources.source import (
    SAMPLED_BYTES,
    Source,
    by_split,
    digest,
    files_by_prefix,
    listed,
    location,
    sample,
)
from hexa.runtime.paths import Inside

Value = TypeVar("Value")
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
#: Shards that a pattern may expand to.
_MOST_SHARDS = 100_000
#: Most bytes of a label, or of a tar header.
_MOST_READ = 1 << 20


class Member(NamedTuple):
    """Where an image is stored in a shard. problem: why it cannot be read from there."""

    name: str
    offset: int
    size: int
    problem: str | None = None


class WebDatasetSource(Source):
    """Samples KEY.jpg (or another image format), each with a label in KEY.cls or KEY.json (`label`), a number or a name.

    The argument is a folder of shards, a pattern such as shards/train-*.tar or train-{0000..0127}.tar, or one file.
    The split is the part of a shard's name before the first "-". Shards are indexed once, and images read from their
    place in the shard, in any order. Nothing is ever unpacked.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        shards = _shards(argument, spec)
        Inside(spec, _root(argument)).check(map(str, shards), "the folder")
        named = files_by_prefix(shards)
        # shards that all have the same prefix, whatever it is, are the split `train`
        groups = (
            {s: named[name] for s, name in by_split(named).items()}
            if len(named) > 1
            else {"train": shards}
        )
        self._read_from = shards = self._open_split(spec, split, groups)
        self._places: list[tuple[Path, Member]] = []
        left_out = Counter[str]()
        found: list[object] = []
        for shard in shards:
            for member, label in _index(shard, spec, _label, left_out):
                self._places.append((shard, member))
                found.append(label)
        self.left_out = left_out
        self.paths = [f"{shard.name}/{member.name}" for shard, member in self._places]
        if not self.paths:
            told = f"; left out: {listed(left_out)}" if left_out else ""
            raise UserError(f"data '{spec}': no images in {shards[0]}{told}")
        rest = [shard for name, group in groups.items() if name != self.split for shard in group]
        # generators: those of the other splits are read only if labels are text
        own = (of_values(labels) for labels in (found,))
        others = (of_values(_labels(group, spec)) for group in (rest,))
        self._number_labels("label in .cls or .json", own, others)
        sizes = [str(member.size) for _, member in self._places]
        names = digest(*self.paths, *sizes, b"" if self.labels is None else self.labels.tobytes())
        self.fingerprint = digest(
            names, samples=sample(len(self), lambda index: self.encoded(index, SAMPLED_BYTES))
        )

    def metadata(self, kind: str, name: str) -> list[str | None]:
        if kind != "key":
            return super().metadata(kind, name)

        def text_of(content: bytes, kind: str) -> str | None:
            fields = _json(content) if kind == "json" else None
            value = fields.get(name) if isinstance(fields, dict) else None
            return str(value) if isinstance(value, str | int | float) else None

        texts = [
            text
            for shard in self.files()
            for _, text in _index(Path(shard), self.name, text_of, Counter())
        ]
        if all(text is None for text in texts):
            raise UserError(
                f"data '{self.name}': none of its .json files has a text or number '{name}'"
            )
        return texts

    def encoded(self, index: int, first: int = decoding.MOST_BYTES) -> bytes:
        shard, member = self._places[index]
        if member.problem is not None:
            raise decoding.DecodeError(member.problem)
        if member.size > decoding.MOST_BYTES:
            raise decoding.DecodeError(decoding.too_large(member.size))
        try:
            with shard.open("rb") as file:
                file.seek(member.offset)
                return file.read(min(member.size, first))
        except OSError as error:
            raise decoding.DecodeError(error.strerror or str(error)) from None


def _root(argument: str) -> Path:
    """The folder or file that the argument names, or the folder in which its pattern begins."""
    place = location(argument)
    if place.exists():
        return place
    fixed = re.split(r"[*?\[{]", os.path.expanduser(argument))[0]
    return Path(os.path.dirname(fixed))


def _shards(argument: str, spec: str) -> list[Path]:
    """The files of a folder, of a pattern with * or {000..127}, or a single file, in order."""
    if argument and location(argument).is_dir():
        argument = f"{argument}/*.tar"
    pieces = _RANGE.split(argument)  # text, first, last, text …
    choices = [[text] for text in pieces[::3]]
    ranges = list(zip(pieces[1::3], pieces[2::3], strict=True))
    if (count := math.prod(int(last) + 1 - int(first) for first, last in ranges)) > _MOST_SHARDS:
        raise UserError(
            f"data '{spec}': the pattern expands to {count:,} shards; at most {_MOST_SHARDS:,} are read"
        )
    numbers = [
        [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        for first, last in ranges
    ]
    parts = [
        part
        for pair in itertools.zip_longest(choices, numbers)
        for part in pair
        if part is not None
    ]
    patterns = ["".join(combination) for combination in itertools.product(*parts)]
    shards = [
        Path(path)
        for pattern in patterns
        for path in sorted(glob.glob(os.path.expanduser(pattern)))
    ]
    if not argument or not shards:
        example = "webdataset:PATH/train-{0000..0127}.tar"
        raise UserError(f"data '{spec}': no such shards; write webdataset:FOLDER or {example}")
    return shards


def _index(
    shard: Path, spec: str, read: Callable[[bytes, str], Value | None], left_out: Counter[str]
) -> list[tuple[Member, Value | None]]:
    """Every image of a shard, with read(content, "cls" or "json") of the .cls or .json file of its sample.

    If no member of a sample has the suffix of an image, one whose content is that of an image is taken. left_out:
    counts the members of samples without an image by suffix. Raises UserError for anything but a complete tar file, and
    for two images of one key.
    """
    images: dict[str, list[Member]] = {}
    others: dict[str, list[tuple[str | None, Member]]] = {}
    values: dict[str, Value] = {}
    if not shard.is_file():
        raise UserError(f"data '{spec}': {shard} is not a file")
    try:
        with _Headers(io.FileIO(shard)) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in _members(archive, file):
                folder, _, base = member.name.rpartition("/")
                stem, _, kind = base.partition(".")
                key = f"{folder}/{stem}"
                whole = member.isreg() and member.sparse is None
                place = Member(member.name, member.offset_data, member.size)
                if f".{kind.lower()}" in decoding.EXTENSIONS and not member.isdir():
                    problem = None if whole else "stored in the tar file as a link or a sparse file"
                    images.setdefault(key, []).append(place._replace(problem=problem))
                elif kind in ("cls", "json") and whole:
                    value = read(file.at(member.offset_data, member.size), kind)
                    values |= {} if value is None else {key: value}
                elif whole:
                    first = partial(_first, file, member)
                    others.setdefault(key, []).append((decoding.why_left_out(base, first), place))
    # damaged headers make tarfile raise all of these
    except (
        tarfile.TarError,
        OSError,
        ValueError,
        LookupError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        words = reason(error) or type(error).__name__
        raise UserError(
            f"data '{spec}': {shard} is not a complete, uncompressed tar file ({words})"
        ) from None
    for key, members in others.items():
        if key not in images:
            images[key] = [place for why, place in members if why is None]
            left_out.update(why for why, _ in members if why is not None)
    images = {key: members for key, members in images.items() if members}
    for key, (one, *more) in images.items():
        if more:
            both = (
                f"{one.name} and {more[0].name} are images of one sample, {key.removeprefix('/')}"
            )
            raise UserError(
                f"data '{spec}': {shard}: {both}; each sample has one image: rename or remove the other"
            )
    return [(members[0], values.get(key)) for key, members in images.items()]


def _first(file: _Headers, member: tarfile.TarInfo, count: int) -> bytes:
    """The first bytes of a member, at most `count`."""
    return file.at(member.offset_data, min(count, member.size))


class _Headers(io.BufferedReader):
    """A file that reads at most one MiB at a time, whatever lengths its headers claim."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MOST_READ:
            raise tarfile.ReadError(
                f"a header or label of {size} bytes; at most {_MOST_READ} are read"
            )
        return super().read(size)

    def at(self, offset: int, size: int) -> bytes:
        self.seek(offset)
        return self.read(size)


def _members(archive: tarfile.TarFile, file: _Headers) -> Iterator[tarfile.TarInfo]:
    """All members. Raises ReadError where `tarfile` would loop forever, or stop early without an error."""
    last = -1
    for member in archive:
        if member.offset <= last or member.size < 0:
            raise tarfile.ReadError("overlapping members")
        last = member.offset
        yield member
    if file.at(archive.offset, tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"damaged or truncated at byte {archive.offset:,}")


def _label(content: bytes, kind: str) -> object:
    """The label in a .cls or .json file, if there is one: a number, a name, or what cannot be a class."""
    value = _json(content)
    if kind == "json":
        other = value if isinstance(value, int | str) else None
        return value.get("label") if isinstance(value, dict) else other
    if isinstance(value, int | float | str | list | dict) and not isinstance(value, bool):
        return value
    with suppress(UnicodeDecodeError):
        return content.decode().strip() or None
    return content


def _labels(shards: list[Path], spec: str) -> list[object]:
    """The labels of all images of these shards."""
    return [label for shard in shards for _, label in _index(shard, spec, _label, Counter())]


def _json(content: bytes) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(content)
    return None
