"""Reader of arrays in Detectron2's .pkl files that runs nothing that a pickle names."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: Functions that numpy's own pickles call; the module depends on numpy's version.
_FROM_BUFFER = np.empty(1).__reduce_ex__(5)[0]
_SCALAR = np.float64(0).__reduce__()[0]


def _empty(*arguments: Any) -> np.ndarray[Any, Any]:
    """Return an empty array, with which numpy's pickles begin; the class itself could allocate any
    amount of memory."""
    return np.empty(0, np.uint8)


def _bytes(text: str, encoding: str) -> bytes:
    """Decode bytes in old pickles; other encodings are refused."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding}")
    return text.encode("latin-1")


_NUMPY = {
    "_reconstruct": _empty,
    "ndarray": _empty,
    "_frombuffer": _FROM_BUFFER,
    "scalar": _SCALAR,
    "dtype": np.dtype,
}
_OTHERS = {("_codecs", "encode"): _bytes, ("collections", "OrderedDict"): OrderedDict}


class _Arrays(
    pickle._Unpickler
):  # the C version allocates memory for the number of objects that a file claims
    """Reads arrays, numbers, text, lists and dictionaries, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _NUMPY.get(name) if module.split(".")[0] == "numpy" else _OTHERS.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found


def read(path: Path) -> Any:
    """Return the content of the pickle. Raises pickle.UnpicklingError if it names any code."""
    return _Arrays(io.BytesIO(path.read_bytes())).load()


def tensor(value: Any) -> Any:
    """Return an array of numbers as a tensor, and anything else unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(value.copy())
    return value
