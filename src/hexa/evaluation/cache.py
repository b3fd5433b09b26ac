"""What evaluations keep: extracted features, under a hash of all that made them, and states of unfinished detectors."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hexa.config import UserError, reason
from hexa.data import Source
from hexa.data.source import digest
from hexa.evaluation.protocol import Task
from hexa.runtime.files import by_plain_name, cache_folder
from hexa.runtime.lock import locked

#: Size of the cache in GB unless HEXA_CACHE_GB is set. The least recently used entries are deleted first.
_GIGABYTES = 20.0
#: Goes up with every change of the code by which the same images come to other pixels. 2: bytes are resized as bytes.
#: 3: strips are cut before they are resized.
_PREPARATION = 3


def key(task: Task, source: Source) -> str:
    """Changes with the weights, the network, the images, how they are prepared, and what they are computed with.

    Ask before the images are read: files that are replaced meanwhile then have another key.
    """
    backbone = task.backbone
    made_by = (backbone.content_hash(), repr(backbone.network), str(backbone.mean), str(backbone.std))
    transform = (type(task.transform).__name__, str(vars(task.transform)), str(_PREPARATION))
    prepared = (*transform, task.precision, task.device.type)
    read = (source.version(), str(len(source)), source.split, str(source.max_image_pixels))
    return digest(*made_by, *prepared, *read, torch.__version__)


def load(name: str) -> tuple[Tensor, Tensor] | None:
    """Features [N, D] fp32 and positions int64 [N] of this key; None if they are missing or damaged."""
    try:
        path = _folder() / f"{name}.safetensors"
        with by_plain_name(path) as plain:
            stored = safetensors.torch.load_file(plain)
        features, positions = stored["features"], stored["positions"]
    except (OSError, KeyError, RuntimeError, safetensors.SafetensorError):  # RuntimeError: a user without a home
        return None
    with contextlib.suppress(OSError):  # a cache may be read-only
        os.utime(path)
    return (features, positions) if features.ndim == 2 and len(features) == len(positions) else None


def store(name: str, features: Tensor, positions: Tensor) -> str | None:
    """Keep them, atomically. Returns why they are not kept, if they are not; that ends nothing."""
    allowed, problem = _allowed_bytes()
    size = features.nbytes + positions.nbytes
    if size > allowed:
        return problem
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(allowed - size)
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        try:
            safetensors.torch.save_file({"features": features.contiguous(), "positions": positions}, temporary)
            os.replace(temporary, folder / f"{name}.safetensors")
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        return f"features were not cached: {reason(error)}"
    return problem


def _allowed_bytes() -> tuple[float, str | None]:
    """How large the cache may be, and what is wrong with HEXA_CACHE_GB if the default stands for it."""
    given = os.environ.get("HEXA_CACHE_GB", "")
    try:
        gigabytes = float(given or _GIGABYTES)
    except ValueError:
        gigabytes = math.nan
    if 0 <= gigabytes < math.inf:
        return 1e9 * gigabytes, None
    return 1e9 * _GIGABYTES, f"HEXA_CACHE_GB={given} must be a number of GB ≥ 0; {_GIGABYTES:g} is used"


def state_folder(name: str) -> Path:
    """Where the state of a training is kept; whoever works there holds `lock_of` it."""
    return _states() / name


def lock_of(state: Path) -> Path:
    """The lock of a state's folder."""
    return cache_folder() / "locks" / state.name


def trim() -> str | None:
    """Make room as HEXA_CACHE_GB says. Returns what is wrong with it, if the default stands for it."""
    allowed, problem = _allowed_bytes()
    with contextlib.suppress(OSError, RuntimeError):
        _make_room(allowed)
    return problem


def _make_room(allowed: float) -> None:
    """Delete the least recently used entries, except states in use, until at most `allowed` bytes are left."""
    entries = []
    for path in (path for folder in (_folder(), _states()) if folder.is_dir() for path in folder.iterdir()):
        with contextlib.suppress(OSError):  # another process made room
            stats = [one.stat() for one in (path, *path.rglob("*"))]
            entries.append((max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats), path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= allowed:
            return
        if path.parent == _folder():
            path.unlink(missing_ok=True)
        elif not _forgotten(path):
            continue
        total -= size


def _forgotten(state: Path) -> bool:
    """Delete a state, unless a process is using it; whether it was deleted."""
    try:
        with locked(lock_of(state), "works there"):
            shutil.rmtree(state, ignore_errors=True)
    except UserError:
        return False
    return True


def _folder() -> Path:
    return cache_folder() / "features"


def _states() -> Path:
    return cache_folder() / "detect"
