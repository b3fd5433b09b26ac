"""Reader of named tensors from untrusted files, in bounded time and memory, without running code in
them.

Files are not trusted: claimed sizes are compared with the file before memory is allocated, and the parts
of a file with its checksums.
"""

from __future__ import annotations

import argparse
import io
import pickle
import re
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import safetensors
import torch
from torch import Tensor

from hexa.config import UserError, reason
from hexa.runtime import parsing, pickles
from hexa.runtime.files import by_plain_name

State = Mapping[str, Tensor]

#: Keys of a checkpoint that are not weights, such as optimizer_states and amp_scaler.
_NOT_WEIGHTS = re.compile(r"\w*(optim|scheduler|scaler)\w*")
#: First byte of files of torch before 1.6, which are pickles.
_PICKLE = b"\x80"
#: Names of parts in archives of arrays, and of TorchScript.
_NOT_CHECKPOINTS = re.compile(r".*\.npy|.*/constants\.pkl")
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
    """

    where: str
    state: dict[str, Tensor]
    containers: tuple[str, ...] = ("",)
    metadata: dict[str, str] = field(default_factory=dict)


def read(path: Path, within: Path | None = None) -> Weights:
    """Return the tensors of a .safetensors file, a torch checkpoint or a .pkl of arrays. Raises
    Unreadable in one line.

    within: a folder that must contain the file after resolving links.
    """
    try:
        parsing.check(path, sys.maxsize, within)
        with path.open("rb") as file:
            begin = file.read(40)
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read ({reason(error)})") from None
    except UserError as error:
        raise Unreadable(str(error)) from None
    is_zip = begin.startswith(pickles.ZIP)
    if path.suffix not in (".safetensors", ".pkl") and not (is_zip or begin.startswith(_PICKLE)):
        # an error page, a Git LFS pointer …
        text = f": it begins with {begin!r}" if begin.isascii() else ""
        raise Unreadable(f"{path}: not a checkpoint{text}; give a file of weights")
    metadata: dict[str, str] = {}
    try:
        with by_plain_name(path) as name, _reading():
            if path.suffix == ".safetensors":
                with safetensors.safe_open(name, framework="pt") as tensors:
                    data = {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118  (it is not a mapping)
                    metadata = tensors.metadata() or {}
            elif path.suffix == ".pkl":
                content = path.read_bytes()
                data = _Arrays(io.BytesIO(content), len(content)).load()
            else:
                pickles.check(name)
                if is_zip:
                    _check_sums(path)
                data = torch.load(name, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # torch raises all sorts of exceptions on damaged bytes
        raise _refusal(path, error) from None
    state, containers = _flat(data)
    if not state:
        raise Unreadable(f"{path}: has no named tensors; give a checkpoint with a state_dict")
    return _checked(Weights(str(path), state, containers, metadata), path.stat().st_size)


def read_all(paths: Sequence[Path], where: str) -> Weights:
    """Return the tensors of several files (shards) as one. Raises Unreadable."""
    shards = [read(path) for path in paths]
    state = {name: value for shard in shards for name, value in shard.state.items()}
    containers = tuple(dict.fromkeys(path for shard in shards for path in shard.containers))
    return Weights(where, state, containers)


def _check_sums(path: Path) -> None:
    """Raise ValueError unless the parts of a zip archive match their checksums."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        # torch can be told to leave checksums out
        has_sums = any(part.CRC for part in parts if part.filename.endswith("/data.pkl"))
        damaged = archive.testzip() if has_sums else None
        if damaged is not None:
            raise ValueError(f"damaged: {damaged} does not match its checksum")


def _refusal(path: Path, error: Exception) -> Unreadable:
    named = re.search(r"GLOBAL ([\w.]+)|it names ([\w.]+)", str(error))
    if isinstance(error, pickle.UnpicklingError) and named:
        # torch's own message advises loading it with weights_only=False
        return Unreadable(
            f"{path}: refused: it has more than tensors and numbers, and reading that could run code or fill the memory (it names "
            f"{named[1] or named[2]}); if you trust it, save only its state_dict (see docs/faq.md)"
        )
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        if any(map(_NOT_CHECKPOINTS.fullmatch, archive.namelist())):
            return Unreadable(
                f"{path}: TorchScript and .npz archives cannot be loaded; save the state_dict of "
                "the network with torch.save"
            )
    words = reason(error).partition(". ")[0]
    return Unreadable(
        f"{path}: not a complete file of weights ({words}); copy it again, or give another one"
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
    tensors: dict[int, Any] = {}  # an array may have many names
    waiting = [("", data)] if isinstance(data, Mapping) else []
    for path, mapping in waiting:  # grows in the loop
        if id(mapping) in seen or len(path) > _LONGEST:
            continue
        seen.add(id(mapping))
        containers.append(path)
        for name, value in mapping.items():
            if not isinstance(name, str) or (path == "" and _NOT_WEIGHTS.fullmatch(name)):
                continue
            if id(value) not in tensors:
                tensors[id(value)] = _tensor(value)
            value = tensors[id(value)]
            if isinstance(value, Tensor):
                state[path + name] = value
            elif isinstance(value, Mapping):
                waiting.append((f"{path}{name}.", value))
    return state, tuple(containers)


def _checked(weights: Weights, size: int) -> Weights:
    """Raise Unreadable unless all tensors are plain and have printable names, and those of repeated
    values are not larger than the file.

    size: of the file in bytes.
    """
    for name, value in weights.state.items():
        if not name.isprintable() or len(name) > _LONGEST:
            raise Unreadable(f"{weights.where}: a tensor has an invalid name: {name[:60]!r}")
        is_stored = value.layout == torch.strided and value.device.type == "cpu"
        if not is_stored or value.is_nested or value.is_quantized or value.is_complex():
            raise Unreadable(f"{weights.where}: {name} is not a plain tensor of real numbers")
        if value.nbytes > value.untyped_storage().nbytes():  # one value can stand for a billion
            size -= value.nbytes
        if size < 0:
            raise Unreadable(
                f"{weights.where}: {name} has fewer values than its shape; save it with .contiguous()"
            )
    return weights


# -- pickles of arrays, such as Detectron2's, without running anything that they name ---------------------------------

#: Functions that numpy's own pickles call; the module depends on numpy's version.
_FROM_BUFFER: Any = np.empty(1).__reduce_ex__(5)[0]
_SCALAR = np.float64(0).__reduce__()[0]


def _empty(*arguments: Any) -> np.ndarray[Any, Any]:
    """numpy's pickles begin with an empty array; the class itself could be asked for any amount of memory."""
    return np.empty(0, "S1")  # not a tensor, unless `load_build` changes its type


def _dtype(name: str, *_: Any) -> np.dtype[Any] | None:
    """Return the type of numbers that numpy's pickles name; None for others, since one element
    of them may have any size."""
    is_number = re.fullmatch(r"[fiub][1248]", name)
    return np.dtype(name, copy=True) if is_number else None  # `load_build` changes it


def _from_buffer(buffer: Any, dtype: np.dtype[Any] | None, *rest: Any) -> np.ndarray[Any, Any]:
    return _empty() if dtype is None else _FROM_BUFFER(buffer, dtype, *rest)


_NUMPY = {
    "_reconstruct": _empty,
    "ndarray": _empty,
    "_frombuffer": _from_buffer,
    "scalar": _SCALAR,
    "dtype": _dtype,
}
_OTHERS = {
    ("_codecs", "encode"): pickles.latin1,
    ("collections", "OrderedDict"): lambda: OrderedDict(),
}


class _Arrays(pickles.Unpickler):
    """Reads arrays of numbers, numbers, text, lists and dictionaries, leaves other arrays empty, and
    refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _NUMPY.get(name) if module.split(".")[0] == "numpy" else _OTHERS.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found

    def load_build(self) -> None:
        value, state = self.stack[-2:]
        if isinstance(value, np.dtype):
            order = state[1]  # the rest could give its elements another size
            self.stack[-1] = (3, order, None, None, None, -1, -1, 0)
        elif isinstance(value, OrderedDict):
            self.check_attributes(state)
        elif value is not None and not isinstance(value, np.ndarray):
            raise pickle.UnpicklingError("it changes a function")
        elif value is None or state[2] is None:  # not of numbers
            self.stack.pop()
            return
        super().load_build()

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**pickles.Unpickler.dispatch}
    dispatch[pickle.BUILD[0]] = load_build


def _tensor(value: Any) -> Any:
    """An array of numbers as a tensor; anything else unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.itemsize <= 8:
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))  # a copy
    return value
