"""Features that were extracted once, kept under a hash of all that made them, for every protocol."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hexa.data import Source
from hexa.data.named import cache_folder
from hexa.data.source import digest
from hexa.evaluation.protocol import Task

#: The cache holds at most so many GB; HEXA_CACHE_GB says otherwise. What was not used for longest goes first.
_GIGABYTES = 20.0
#: Goes up with every change of the code by which the same images come to other pixels. 2: bytes are resized as bytes.
_PREPARATION = 2


def key(task: Task, source: Source) -> str:
    """Changes with the weights, the network, the images, how they are prepared, and what they are computed with.

    Ask before the images are read: files that are replaced meanwhile then have another key.
    """
    backbone = task.backbone
    made_by = (backbone.content_hash(), repr(backbone.network), str(backbone.mean), str(backbone.std))
    transform = (type(task.transform).__name__, str(vars(task.transform)), str(_PREPARATION))
    prepared = (*transform, task.precision, task.device.type)
    return digest(*made_by, *prepared, source.version(), str(len(source)), source.split, torch.__version__)


def load(name: str) -> tuple[Tensor, Tensor] | None:
    """Features [N, D] fp32 and positions int64 [N] of this key; None if they are not there, or not whole."""
    path = _folder() / f"{name}.safetensors"
    try:
        found = safetensors.torch.load_file(path)
        os.utime(path)
        return found["features"], found["positions"]
    except (OSError, KeyError, safetensors.SafetensorError):
        return None


def store(name: str, features: Tensor, positions: Tensor) -> None:
    """Keep them, at once or not at all. That nothing can be written there is no error: they are made anew next time."""
    allowed = 1e9 * float(os.environ.get("HEXA_CACHE_GB", _GIGABYTES))
    size = features.nbytes + positions.nbytes
    if size > allowed:
        return
    temporary = _folder() / f".{name}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            _make_room(allowed - size)
            safetensors.torch.save_file({"features": features.contiguous(), "positions": positions}, temporary)
            os.replace(temporary, _folder() / f"{name}.safetensors")
        finally:
            temporary.unlink(missing_ok=True)


def _make_room(allowed: float) -> None:
    stats = sorted(((path.stat(), path) for path in _folder().glob("*.safetensors")), key=lambda pair: pair[0].st_mtime)
    total = sum(stat.st_size for stat, _ in stats)
    for stat, path in stats:
        if total <= allowed:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size


def _folder() -> Path:
    return cache_folder() / "features"
