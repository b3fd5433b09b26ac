"""Tensors by name from untrusted files: in bounded time and memory, and no code in them is run.

What a file claims is not what it holds: sizes are compared with the file before memory is taken, and the tensors that
are used with the sums that the file keeps of its parts.
"""

from __future__ import annotations

import pickle
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from hexa.config import UserError, reason
from hexa.nn import arrays
from hexa.runtime.files import by_plain_name

State = Mapping[str, Tensor]

#: Where in a checkpoint the tensors lie, at any depth; the longest way is VISSL's.
_INSIDE = ("state_dict", "classy_state_dict", "base_model", "model", "trunk", "method", "state")
#: What torch's files begin with: a zip archive, or, from before torch 1.6, a pickle.
_ZIP, _PICKLE = b"PK", b"\x80"
#: Characters of a tensor's name, at most.
_LONGEST = 300


class Unreadable(UserError):
    """A file that is truncated, changed or of another kind, or that could only be read by running code."""


@dataclass(frozen=True)
class Weights:
    """Tensors of a file by name, on the CPU. A checkpoint's are read from the disk when they are used, not before.

    metadata: of a safetensors file. sums: (bytes, CRC-32) of the parts of a checkpoint, where it keeps them.
    """

    where: str
    state: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    sums: frozenset[tuple[int, int]] | None = None

    def check(self, used: State) -> None:
        """Raise Unreadable if the tensors that are used are not those that were written."""
        for name, value in used.items() if self.sums is not None else ():
            storage = value.untyped_storage()
            own = (storage.nbytes(), zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data))
            if own not in (self.sums or ()):
                raise Unreadable(f"{self.where}: damaged: {name} does not match the sum that the file keeps of it")


def read(path: Path) -> Weights:
    """The tensors of a .safetensors file, a checkpoint of torch or a .pkl of arrays. Raises Unreadable in one line."""
    if path.exists() and not path.is_file():  # a pipe would make us wait for ever
        raise Unreadable(f"{path}: not a file")
    try:
        if path.suffix == ".safetensors":
            return _checked(_safetensors(path))
        with path.open("rb") as file:
            begin = file.read(40)
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read ({reason(error)})") from None
    if path.suffix != ".pkl" and not begin.startswith((_ZIP, _PICKLE)):
        # the page of an error, a pointer to where the file lies …
        raise Unreadable(f"{path}: not a checkpoint: it begins with {begin!r}; give a file of weights")
    sums = None
    try:
        if path.suffix == ".pkl":
            data = arrays.tensors(_innermost(arrays.read(path)))
        elif begin.startswith(_ZIP):
            sums = _sums(path)
            with by_plain_name(path) as name:
                data = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
        else:
            data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises whatever the damaged bytes lead it to
        raise _refusal(path, error) from None
    state = {n: v for n, v in _innermost(data).items() if isinstance(n, str) and isinstance(v, Tensor)}
    if not state:
        raise Unreadable(f"{path}: holds no tensors by name; give a checkpoint with a state_dict")
    return _checked(Weights(str(path), state, sums=sums))


def _safetensors(path: Path) -> Weights:
    try:
        with by_plain_name(path) as name, safetensors.safe_open(name, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is not a mapping)
            return Weights(str(path), state, file.metadata() or {})
    except Exception as error:  # types that torch lacks, besides its own
        raise Unreadable(f"{path}: not a whole safetensors file ({reason(error)}); copy it again") from None


def _sums(path: Path) -> frozenset[tuple[int, int]] | None:
    """What a zip archive says of its parts; None if it was written without sums. Raises for what torch never writes."""
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
        # torch's own advice is to load it all the same
        return Unreadable(
            f"{path}: refused: it holds more than tensors and numbers, and reading that would run code (it names "
            f"{named[1] or named[2]}); if you trust it, save its state_dict alone (see docs/faq.md)"
        )
    first = re.split(r"(?<=[.:]) ", reason(error))[0].rstrip(".:")
    said = first if len(first) > 10 else "of no format that torch writes"
    return Unreadable(f"{path}: not a whole checkpoint ({said}); copy it again")


def _innermost(data: Any) -> Mapping[Any, Any]:
    """The mapping that holds the tensors, wherever in the file it lies. A file may hold itself."""
    seen: set[int] = set()
    while isinstance(data, Mapping) and id(data) not in seen:
        seen.add(id(data))
        data = next((data[key] for key in _INSIDE if isinstance(data.get(key), Mapping)), data)
    return data if isinstance(data, Mapping) else {}


def _checked(weights: Weights) -> Weights:
    """Only plain tensors under names that can be printed. Raises Unreadable."""
    for name, value in weights.state.items():
        if not name.isprintable() or len(name) > _LONGEST:
            raise Unreadable(f"{weights.where}: a tensor's name is not that of a module: {name[:60]!r}")
        kind = _kind(value)
        if kind is not None:
            raise Unreadable(f"{weights.where}: {name} is {kind}; weights are plain tensors of real numbers")
    return weights


def _kind(value: Tensor) -> str | None:
    """What keeps a tensor from being plain."""
    if value.is_nested or value.layout != torch.strided:
        return "sparse" if not value.is_nested else "nested"
    if value.is_quantized:
        return "quantized"
    if value.is_complex():
        return "complex"
    return None if value.device.type == "cpu" else f"on the device {value.device.type}, where nothing can be read"
