"""Reader of named tensors from untrusted files, in bounded time and memory, without running code in
them.

Files are not trusted: claimed sizes are compared with the file before memory is allocated, and used
tensors with the checksums in the file.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from hexa.config import UserError, reason
from hexa.runtime.files import by_plain_name
from hexa.weights import arrays

State = Mapping[str, Tensor]

#: Keys of a checkpoint that are not weights, such as optimizer_states and amp_scaler.
_NOT_WEIGHTS = re.compile(r"\w*(optim|scheduler|scaler)\w*")
#: First bytes of torch's files, which are zip archives.
_ZIP = b"PK"
#: First byte of files of torch before 1.6, which are pickles.
_PICKLE = b"\x80"
#: Longest name of a tensor.
_LONGEST = 300


class Unreadable(UserError):
    """A file that is truncated, changed or of another kind, or that only code execution could
    read."""


@dataclass(frozen=True)
class Weights:
    """Tensors of a file by name, on the CPU. Tensors of a checkpoint are read from the disk when
    they are used.

    A tensor nested in mappings is named by its path: `teacher.backbone.cls_token`.
    containers: paths of these mappings, such as `teacher.`, and "" for the file.
    metadata: of a safetensors file.
    sums: (bytes, CRC-32) of the parts of a checkpoint, if it has them.
    """

    where: str
    state: dict[str, Tensor]
    containers: tuple[str, ...] = ("",)
    metadata: dict[str, str] = field(default_factory=dict)
    sums: frozenset[tuple[int, int]] | None = None

    def check(self, used: State) -> None:
        """Raise Unreadable if used tensors do not match their checksums."""
        for name, value in used.items() if self.sums is not None else ():
            storage = value.untyped_storage()
            own = (
                storage.nbytes(),
                zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data),
            )
            if own not in (self.sums or ()):
                raise Unreadable(
                    f"{self.where}: damaged: {name} does not match its checksum in the file"
                )


def read(path: Path) -> Weights:
    """Return the tensors of a .safetensors file, a torch checkpoint or a .pkl of arrays. Raises
    Unreadable in one line."""
    if path.exists() and not path.is_file():  # reading a pipe may never end
        raise Unreadable(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            begin = file.read(40)
        if path.suffix == ".safetensors":
            return _checked(_safetensors(path))
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read ({reason(error)})") from None
    if path.suffix != ".pkl" and not begin.startswith((_ZIP, _PICKLE)):
        # an error page, a Git LFS pointer …
        text = f": it begins with {begin!r}" if begin.isascii() else ""
        raise Unreadable(f"{path}: not a checkpoint{text}; give a file of weights")
    sums = None
    try:
        if path.suffix == ".pkl":
            data = arrays.read(path)
        elif begin.startswith(_ZIP):
            sums = _sums(path)
            with by_plain_name(path) as name, _reading():
                data = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
        else:
            with _reading():
                data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises all sorts of exceptions on damaged bytes
        raise _refusal(path, error) from None
    state, containers = _flat(data)
    if not state:
        raise Unreadable(f"{path}: has no named tensors; give a checkpoint with a state_dict")
    return _checked(Weights(str(path), state, containers, sums=sums))


def read_all(paths: Sequence[Path], where: str) -> Weights:
    """Return the tensors of several files (shards) as one. Raises Unreadable."""
    shards = [read(path) for path in paths]
    state = {name: value for shard in shards for name, value in shard.state.items()}
    sums = [shard.sums for shard in shards if shard.sums is not None]
    whole = frozenset().union(*sums) if len(sums) == len(shards) else None
    containers = tuple(dict.fromkeys(path for shard in shards for path in shard.containers))
    metadata = shards[0].metadata if len(shards) == 1 else {}
    return Weights(where, state, containers, metadata, whole)


def _safetensors(path: Path) -> Weights:
    try:
        with by_plain_name(path) as name, safetensors.safe_open(name, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is not a mapping)
            return Weights(str(path), state, metadata=file.metadata() or {})
    except Exception as error:  # its own, and torch's for types that torch lacks
        raise Unreadable(
            f"{path}: not a complete safetensors file ({reason(error)}); copy it again"
        ) from None


def _sums(path: Path) -> frozenset[tuple[int, int]] | None:
    """Return sizes and checksums of a zip archive's parts; None if it has none. Raises if the
    archive is not torch's."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError("its parts are compressed")
        named = {part.filename.partition("/")[2]: part for part in parts}
        if not named["data.pkl"].CRC:
            return None
        for name in named.keys() & {"data.pkl", "byteorder"}:
            if archive.read(named[name]) == b"big":  # torch turns the bytes as it reads
                return None
    return frozenset((part.file_size, part.CRC) for part in parts)


def _refusal(path: Path, error: Exception) -> Unreadable:
    named = re.search(r"GLOBAL ([\w.]+)|it names ([\w.]+)", str(error))
    if isinstance(error, pickle.UnpicklingError) and named:
        # torch's own message advises loading it with weights_only=False
        return Unreadable(
            f"{path}: refused: it has more than tensors and numbers, and reading that would run code (it names "
            f"{named[1] or named[2]}); if you trust it, save only its state_dict (see docs/faq.md)"
        )
    first = re.split(r"(?<=[.:]) ", reason(error))[0].rstrip(".:")
    says_little = len(first) <= 10 or first.startswith("Weights only load failed")
    words = "not in a format that torch writes" if says_little else first
    return Unreadable(
        f"{path}: not a complete checkpoint ({words}); give a file of weights, or copy this one again"
    )


@contextmanager
def _reading() -> Iterator[None]:
    """Let torch read argparse.Namespace of training scripts, and hide warnings, which refer to
    lines of torch."""
    with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
        warnings.simplefilter("ignore")
        yield


def _flat(data: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return all tensors in nested mappings by path, and the paths of the mappings. A file may
    contain itself."""
    state: dict[str, Tensor] = {}
    containers: list[str] = []
    seen: set[int] = set()
    waiting = [("", data)] if isinstance(data, Mapping) else []
    for path, mapping in waiting:  # grows in the loop
        if id(mapping) in seen or len(path) > _LONGEST:
            continue
        seen.add(id(mapping))
        containers.append(path)
        for name, value in mapping.items():
            if not isinstance(name, str) or (path == "" and _NOT_WEIGHTS.fullmatch(name)):
                continue
            value = arrays.tensor(value)
            if isinstance(value, Tensor):
                state[path + name] = value
            elif isinstance(value, Mapping):
                waiting.append((f"{path}{name}.", value))
    return state, tuple(containers)


def _checked(weights: Weights) -> Weights:
    """Raise Unreadable unless all tensors are plain and have printable names."""
    for name, value in weights.state.items():
        if not name.isprintable() or len(name) > _LONGEST:
            raise Unreadable(f"{weights.where}: a tensor has an invalid name: {name[:60]!r}")
        kinds = {
            "nested": value.is_nested,
            "quantized": value.is_quantized,
            "complex": value.is_complex(),
        }
        kinds |= {
            "sparse": value.layout != torch.strided,
            "without data": value.device.type != "cpu",
        }
        for kind in (kind for kind, found in kinds.items() if found):
            raise Unreadable(
                f"{weights.where}: {name} is {kind}; weights are plain tensors of real numbers"
            )
    return weights
