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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hexa.config import UserError, reason
from hexa.data import decode as decoding
from hexa.data.source import SAMPLED_BYTES, Source, by_split, choose_split, digest, location, sample

Told = TypeVar("Told")
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
#: Names that a pattern may stand for.
_MOST_SHARDS = 100_000
#: Bytes of a label, or of a header of tar; more than that has another purpose.
_MOST_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """Where an image lies in a shard. problem: why its bytes are not to be found there."""

    name: str
    offset: int
    size: int
    problem: str | None = None


class WebDatasetSource(Source):
    """Samples KEY.jpg (or another image) with KEY.cls, a number, or KEY.json with `label` beside it.

    The argument is a folder of shards, a pattern such as shards/train-*.tar or train-{0000..0127}.tar, or one file.
    What comes before the first "-" of a shard's name is its split. Shards are indexed once and images read from where
    they lie in them, so any order is as good as another. Nothing is ever unpacked: names of members are only names.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        shards = _shards(argument, spec)
        named: dict[str, list[Path]] = {}
        for shard in shards:
            named.setdefault(shard.name.split(".")[0].split("-")[0], []).append(shard)
        # a single kind of shards is a split whatever it is called
        groups = {s: named[name] for s, name in by_split(named).items()} if len(named) > 1 else {"train": shards}
        self.name, self._splits = spec, list(groups)
        self.split = choose_split(spec, split, groups)
        self._shards = groups[self.split]
        self._places: list[tuple[Path, Member]] = []
        labels: list[int] = []
        for shard in self._shards:
            for member, label in _index(shard, spec, _label):
                self._places.append((shard, member))
                labels += [] if label is None else [label]
        self.paths = [f"{shard.name}/{member.name}" for shard, member in self._places]
        if not self.paths:
            raise UserError(f"data '{spec}': no images in {self._shards[0]}")
        self._take_labels(np.array(labels), None)
        sizes = [str(member.size) for _, member in self._places]
        self.former_fingerprint = digest(*self.paths, *sizes, b"" if self.labels is None else self.labels.tobytes())
        contents = sample(len(self), lambda index: self._read(index, SAMPLED_BYTES))
        self.fingerprint = digest(self.former_fingerprint, *contents)

    def splits(self) -> list[str]:
        return self._splits

    def files(self) -> list[Path]:
        return self._shards

    def metadata(self, kind: str, name: str) -> list[str | None]:
        if kind != "key":
            return super().metadata(kind, name)

        def told(content: bytes, kind: str) -> str | None:
            value = _json(content) if kind == "json" else None
            found = value.get(name) if isinstance(value, dict) else None
            return str(found) if isinstance(found, str | int | float) else None

        found = [text for shard in self._shards for _, text in _index(shard, self.name, told)]
        if all(text is None for text in found):
            raise UserError(f"data '{self.name}': no .json beside its images has a text or number '{name}'")
        return found

    def encoded(self, index: int) -> bytes:
        return self._read(index)

    def _read(self, index: int, first: int = decoding.MOST_BYTES) -> bytes:
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


def _shards(argument: str, spec: str) -> list[Path]:
    """The files that a folder, a pattern with * or {000..127}, or a name stands for, in order."""
    if argument and location(argument).is_dir():
        argument = f"{argument}/*.tar"
    pieces = _RANGE.split(argument)  # text, first, last, text …
    choices = [[text] for text in pieces[::3]]
    ranges = list(zip(pieces[1::3], pieces[2::3], strict=True))
    count = math.prod(int(last) + 1 - int(first) for first, last in ranges)
    if count > _MOST_SHARDS:
        raise UserError(f"data '{spec}': the pattern stands for {count:,} shards; {_MOST_SHARDS:,} are the most")
    numbers = [[str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] for first, last in ranges]
    parts = [part for pair in itertools.zip_longest(choices, numbers) for part in pair if part is not None]
    patterns = ["".join(combination) for combination in itertools.product(*parts)]
    found = [Path(path) for pattern in patterns for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    if not argument or not found:
        example = "webdataset:PATH/train-{0000..0127}.tar"
        raise UserError(f"data '{spec}': no such shards; write webdataset:FOLDER or {example}")
    return found


def _index(shard: Path, spec: str, read: Callable[[bytes, str], Told | None]) -> list[tuple[Member, Told | None]]:
    """Every image of a shard, and what `read` finds in the .cls or .json beside it (its content, "cls" or "json").

    Raises UserError for what is not a whole tar file.
    """
    images: dict[str, Member] = {}
    told: dict[str, Told] = {}
    if not shard.is_file():
        raise UserError(f"data '{spec}': {shard} is not a file")
    try:
        with _Headers(shard) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in _members(archive, file):
                folder, _, base = member.name.rpartition("/")
                stem, _, kind = base.partition(".")
                key = f"{folder}/{stem}"
                whole = member.isreg() and member.sparse is None
                if f".{kind.lower()}" in decoding.EXTENSIONS and not member.isdir():
                    problem = None if whole else "stored in the tar as a link or with holes, not as a whole file"
                    images[key] = Member(member.name, member.offset_data, member.size, problem)
                elif kind in ("cls", "json") and whole:
                    value = read(file.at(member.offset_data, member.size), kind)
                    told |= {} if value is None else {key: value}
    # tarfile says of damaged headers what Python says of what it does with them
    except (tarfile.TarError, OSError, ValueError, LookupError, OverflowError, RecursionError, MemoryError) as error:
        said = reason(error) or type(error).__name__
        raise UserError(f"data '{spec}': {shard} is not a whole, uncompressed tar file ({said})") from None
    return [(member, told.get(key)) for key, member in images.items()]


class _Headers(io.BufferedReader):
    """A file of which headers and labels are read: whatever lengths it tells, no more than a MiB at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MOST_READ:
            raise tarfile.ReadError(f"a header or a label of {size} bytes, more than {_MOST_READ}")
        return super().read(size)

    def at(self, offset: int, size: int) -> bytes:
        self.seek(offset)
        return self.read(size)


def _members(archive: tarfile.TarFile, file: _Headers) -> Iterator[tarfile.TarInfo]:
    """All members. Raises ReadError where `tarfile` would go round in circles, or end early as if all were there."""
    last = -1
    for member in archive:
        if member.offset <= last or member.size < 0:
            raise tarfile.ReadError("its members overlap")
        last = member.offset
        yield member
    if file.at(archive.offset, tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"damaged or cut off at byte {archive.offset:,}")


def _label(content: bytes, kind: str) -> int | None:
    """The number that a .cls or .json file tells, if it does."""
    value = _json(content)
    found = value.get("label") if kind == "json" and isinstance(value, dict) else value
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
