"""Reads images in tar shards in the layout of WebDataset."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hexa.config import UserError
from hexa.data.sources import decode as decoding
from hexa.data.sources.labels import of_values
from hexa.data.sources.source import SAMPLED_BYTES, Source, digest, reported, sample
from hexa.data.sources.splits import files_by_split
from hexa.runtime.paths import Inside, location

Value = TypeVar("Value")
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
#: Maximum number of shards of a pattern.
_MOST_SHARDS = 100_000
#: Maximum size of a label or a tar header, in bytes.
_MOST_READ = 1 << 20


class Member(NamedTuple):
    """Position of an image in a shard. problem: reason why the image is unreadable; None if it is readable."""

    name: str
    offset: int
    size: int
    problem: str | None = None


class WebDatasetSource(Source):
    """Samples KEY.jpg (or another image format), with a label in KEY.cls or in the field `label` of KEY.json.

    A label is a number or a name. The argument is a folder of shards, a pattern such as shards/train-*.tar or
    train-{0000..0127}.tar, or one file. Splits are named as in `files_by_split`; a single one is `train`. Shards are
    indexed once; images are read in any order from their position in the shard, without unpacking.
    """

    _read_from: list[Path]

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        shards = _shards(argument, spec)
        Inside(spec, _root(argument)).check(map(str, shards), "the folder")
        groups = files_by_split(shards, is_pattern=not location(argument).is_dir())
        if len(groups) == 1:
            groups = {"train": shards}
        self._read_from = self._open_split(spec, split, groups)
        self.left_out = Counter()
        found = list(_read(self._read_from, spec, _label, self.left_out))
        self._places = [(shard, member) for shard, member, _ in found]
        self.paths = [f"{shard.name}/{member.name}" for shard, member in self._places]
        self._check_not_empty(str(self._read_from[0]))
        rest = [shard for name, group in groups.items() if name != self.split for shard in group]
        # the generator reads the other splits only if labels are text
        others = _read(rest, spec, _label, Counter())
        what = "label in .cls or .json"
        self._number_labels(what, map(_labels, [found]), map(_labels, [others]))
        sizes = [str(member.size) for _, member in self._places]
        known = b"" if self.labels is None else self.labels.tobytes()
        contents = sample(len(self), lambda index: self.encoded(index, SAMPLED_BYTES))
        self.fingerprint = digest(digest(*self.paths, *sizes, known), samples=contents)

    def metadata(self, kind: str, name: str) -> list[str | None]:
        if kind != "key":
            return super().metadata(kind, name)

        def text_of(content: bytes, kind: str) -> str | None:
            fields = _json(content) if kind == "json" else None
            value = fields.get(name) if isinstance(fields, dict) else None
            return str(value) if isinstance(value, str | int | float) else None

        found = _read(self._read_from, self.name, text_of, Counter())
        texts = [text for _, _, text in found]
        if all(text is None for text in texts):
            raise UserError(
                f"data '{self.name}': none of its .json files has a text or number '{name}'"
            )
        return texts

    def encoded(self, index: int, first: int = decoding.MOST_BYTES) -> bytes:
        shard, member = self._places[index]
        if member.problem is not None:
            raise decoding.DecodeError(member.problem)
        decoding.check_bytes(member.size)
        try:
            with shard.open("rb") as file:
                file.seek(member.offset)
                return file.read(min(member.size, first))
        except OSError as error:
            raise decoding.DecodeError(error.strerror or str(error)) from None


def _root(argument: str) -> Path:
    """Return the folder or file of the argument, or the folder at the beginning of its pattern."""
    place = location(argument)
    if place.exists():
        return place
    fixed = re.split(r"[*?\[{]", os.path.expanduser(argument))[0]
    return Path(os.path.dirname(fixed))


def _shards(argument: str, spec: str) -> list[Path]:
    """Return the shards of a folder, a pattern with * or {000..127}, or a single file, in order.

    Raises UserError without shards, and for a missing file of a range.
    """
    if argument and location(argument).is_dir():
        argument = f"{glob.escape(argument)}/*.tar"
    shards: list[Path] = []
    for pattern in _expanded(os.path.expanduser(argument), spec):
        found = sorted(glob.glob(pattern))
        if not found and argument and not glob.has_magic(pattern):
            raise UserError(
                f"data '{spec}': no such shard: {pattern}; name a folder or files that exist"
            )
        shards += map(Path, found)
    if not shards:
        raise UserError(
            f"data '{spec}': no such shards; write webdataset:FOLDER or "
            "webdataset:PATH/train-{0000..0127}.tar"
        )
    return shards


def _expanded(pattern: str, spec: str) -> list[str]:
    """Expand the ranges of a pattern. Raises UserError for too many shards."""
    found = _RANGE.search(pattern)
    if found is None:
        return [pattern]
    ends = _expanded(pattern[found.end() :], spec)
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    if (numbers.stop - numbers.start) * len(ends) > _MOST_SHARDS:
        raise UserError(
            f"data '{spec}': the pattern expands to more than {_MOST_SHARDS:,} shards; "
            "give a shorter range"
        )
    begin = pattern[: found.start()]
    return [f"{begin}{n:0{len(first)}}{end}" for n in numbers for end in ends]


def _read(
    shards: list[Path],
    spec: str,
    read: Callable[[bytes, str], Value | None],
    left_out: Counter[str],
) -> Iterator[tuple[Path, Member, Value | None]]:
    """Yield shard, image and the value of read(content, "cls" or "json") for every sample with an image.

    If no member of a sample has an image suffix, a member with the content of an image is the image. left_out: counts
    members of samples without an image, by suffix. Raises UserError for an incomplete tar file, and for two images of
    one key.
    """
    for shard in shards:
        if not shard.is_file():
            raise UserError(f"data '{spec}': {shard} is not a file")
        with reported(f"data '{spec}': {shard} is not a complete, uncompressed tar file"):
            images, others, values = _index(shard, read)
            # samples with an image suffix come first
        for key in {**images, **others}:
            found = images.get(key) or [place for why, place in others[key] if why is None]
            if key not in images:
                left_out.update(why for why, _ in others[key] if why is not None)
            if len(found) > 1:
                raise UserError(
                    f"data '{spec}': {shard}: {found[0].name} and {found[1].name} are images of one sample, "
                    f"{key.removeprefix('/')}; each sample has one image: rename or remove the other"
                )
            yield from ((shard, image, values.get(key)) for image in found)


_Images = defaultdict[str, list[Member]]
_Others = defaultdict[str, list[tuple[str | None, Member]]]


def _index(
    shard: Path, read: Callable[[bytes, str], Value | None]
) -> tuple[_Images, _Others, dict[str, Value]]:
    """Index a shard by key: images, other members with the reason to leave them out, and values of .cls or .json.

    Raises any error of `tarfile` for damaged headers.
    """
    images: _Images = defaultdict(list)
    others: _Others = defaultdict(list)
    values = {}
    with _Headers(io.FileIO(shard)) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in _members(archive, file):
            folder, _, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            key = f"{folder}/{stem}"
            whole = member.isreg() and member.sparse is None
            place = Member(member.name, member.offset_data, member.size)
            if base.startswith("."):  # macOS adds ._1.png
                others[key].append(("hidden", place))
            elif f".{kind.lower()}" in decoding.EXTENSIONS and not member.isdir():
                problem = None if whole else "stored in the tar file as a link or a sparse file"
                images[key].append(place._replace(problem=problem))
            elif kind in ("cls", "json") and whole:
                value = read(file.at(member.offset_data, member.size), kind)
                if value is not None:
                    values[key] = value
            elif whole:
                why = decoding.why_left_out(base, partial(_first, file, member))
                others[key].append((why, place))
    return images, others, values


def _first(file: _Headers, member: tarfile.TarInfo, count: int) -> bytes:
    """Read the first bytes of a member, at most `count`."""
    return file.at(member.offset_data, min(count, member.size))


class _Headers(io.BufferedReader):
    """A file that refuses to read more than one MiB at a time, because headers may claim any length."""

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
    """Yield all members. Raises ReadError for archives on which `tarfile` loops forever or stops early in silence."""
    last = -1
    for member in archive:
        if member.offset <= last or member.size < 0:
            raise tarfile.ReadError("overlapping members")
        last = member.offset
        yield member
    if file.at(archive.offset, tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"damaged or truncated at byte {archive.offset:,}")


def _labels(samples: Iterable[tuple[Path, Member, object]]) -> Any:
    """Return the labels of samples as an Arrow array. Raises NotClasses."""
    return of_values([label for _, _, label in samples])


def _label(content: bytes, kind: str) -> object:
    """Return the label in a .cls or .json file: a number, a name, or another value; None without a label."""
    value = _json(content)
    if kind == "json":
        other = value if isinstance(value, int | str) else None
        return value.get("label") if isinstance(value, dict) else other
    if isinstance(value, int | float | str | list | dict) and not isinstance(value, bool):
        return value
    with suppress(UnicodeDecodeError):
        return content.decode().strip() or None
    return content


def _json(content: bytes) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(content)
    return None
