"""Images in tar shards, as WebDataset writes them."""

from __future__ import annotations

import glob
import itertools
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hexa.config import UserError
from hexa.data import decode as decoding
from hexa.data.source import Source, by_split, choose_split, digest

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class WebDatasetSource(Source):
    """Samples KEY.jpg (or another image) with KEY.cls, a number, or KEY.json with `label` beside it.

    The argument is a folder of shards, a pattern such as shards/train-*.tar or train-{0000..0127}.tar, or one file.
    What comes before the first "-" of a shard's name is its split. Shards are indexed once and images read from where
    they lie in them, so any order is as good as another.
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
        self._places: list[tuple[Path, int, int]] = []
        self.paths = []
        labels: list[int | None] = []
        for shard in groups[self.split]:
            for name, offset, size, label in _index(shard, spec):
                self._places.append((shard, offset, size))
                self.paths.append(f"{shard.name}/{name}")
                labels.append(label)
        if not self.paths:
            raise UserError(f"data '{spec}': no images in {groups[self.split][0]}")
        if None not in labels:
            self.labels = np.array(labels, dtype=np.int64)
        sizes = [str(size) for _, _, size in self._places]
        self.fingerprint = digest(*self.paths, *sizes, b"" if self.labels is None else self.labels.tobytes())

    def splits(self) -> list[str]:
        return self._splits

    def encoded(self, index: int) -> bytes:
        shard, offset, size = self._places[index]
        try:
            with shard.open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise decoding.DecodeError(error.strerror or str(error)) from None

    def decode(self, index: int) -> Tensor:
        return decoding.decode(self.encoded(index))


def _shards(argument: str, spec: str) -> list[Path]:
    """The files that a folder, a pattern with * or {000..127}, or a name stands for, in order."""
    if Path(argument).expanduser().is_dir():
        argument = f"{argument}/*.tar"
    pieces = _RANGE.split(argument)  # text, first, last, text …
    choices = [[text] for text in pieces[::3]]
    ranges = zip(pieces[1::3], pieces[2::3], strict=True)
    numbers = [[str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] for first, last in ranges]
    parts = [part for pair in itertools.zip_longest(choices, numbers) for part in pair if part is not None]
    patterns = ["".join(combination) for combination in itertools.product(*parts)]
    found = [Path(path) for pattern in patterns for path in sorted(glob.glob(str(Path(pattern).expanduser())))]
    if not argument or not found:
        example = "webdataset:PATH/train-{0000..0127}.tar"
        raise UserError(f"data '{spec}': no such shards; write webdataset:FOLDER or {example}")
    return found


def _index(shard: Path, spec: str) -> list[tuple[str, int, int, int | None]]:
    """(name, offset, size, label) of every image of a shard."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, _, base = member.name.rpartition("/")
                stem, _, kind = base.partition(".")
                key = f"{folder}/{stem}"
                if not member.isfile():
                    continue
                if f".{kind.lower()}" in decoding.EXTENSIONS:
                    images[key] = (member.name, member.offset_data, member.size)
                elif kind in ("cls", "json"):
                    label = _label(archive.extractfile(member).read(), kind)  # type: ignore[union-attr]
                    labels |= {} if label is None else {key: label}
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"data '{spec}': {shard} is no uncompressed tar file ({error})") from None
    return [(*place, labels.get(key)) for key, place in images.items()]


def _label(content: bytes, kind: str) -> int | None:
    """The number that a .cls or .json file tells, if it does."""
    try:
        value: Any = json.loads(content)
    except ValueError:
        return None
    found = value.get("label") if kind == "json" and isinstance(value, dict) else value
    return found if isinstance(found, int) else None
