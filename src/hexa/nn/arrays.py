"""Arrays from a pickle without running anything it names: Detectron2's .pkl files."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: What numpy's own pickles call, whatever its version calls the module.
_NUMPY = {
    "_reconstruct": np.empty(1).__reduce__()[0],
    "_frombuffer": np.empty(1).__reduce_ex__(5)[0],
    "scalar": np.float64(0).__reduce__()[0],
    "ndarray": np.ndarray,
    "dtype": np.dtype,
}


def _bytes(text: str, encoding: str) -> bytes:
    """What old pickles of bytes call; other encodings have no business here."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding}")
    return text.encode("latin-1")


class _Arrays(pickle.Unpickler):
    """Knows arrays, numbers, texts, lists and dictionaries; whatever else a file asks for is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _bytes
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read(path: Path) -> Any:
    """What the pickle holds, arrays of numbers as tensors. Raises pickle.UnpicklingError for anything that is code."""
    return _tensors(_Arrays(io.BytesIO(path.read_bytes())).load())


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tensors(one) for key, one in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(value.copy())
    return value
