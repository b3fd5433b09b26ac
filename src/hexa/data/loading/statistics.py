"""Mean and standard deviation of each channel over a source, measured once and cached."""

from __future__ import annotations

import contextlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.data.loading.store import available_cores
from hexa.data.sources import decode as decoding
from hexa.data.sources.source import Source, digest
from hexa.ops.photometric import unit
from hexa.runtime import parsing
from hexa.runtime.files import cache_folder, write_text

#: Images that are measured, evenly spread over the source.
_IMAGES = 2048
#: Sides above this many pixels are sub-sampled.
_SIDE = 1024
#: Raise it with every change of the measurement.
_VERSION = 1
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def measured(source: Source) -> Statistics:
    """Mean and standard deviation of each channel, pixels in [0, 1], to four digits.

    μ_c = E_i E_p x, σ_c² = E_i E_p x² − μ_c² over the pixels p of each image i, for at most 2,048 images, and every
    k-th row and column of large ones. Unreadable images are skipped. Cached under HEXA_CACHE for as long as the files
    stay the same. Raises UserError if no image can be read.
    """
    version = digest(
        source.version(),
        source.split,
        str((source.max_image_pixels, source.channels, source.max_value, _VERSION)),
    )
    with contextlib.suppress(OSError, RuntimeError, UserError, ValueError, TypeError, KeyError):
        cached = parsing.from_json(parsing.read_text(_cache_file(version), 2**16))
        mean, std = (tuple(map(float, cached[name])) for name in ("mean", "std"))
        if len(mean) == len(std) == source.channels and all(map(math.isfinite, (*mean, *std))):
            return mean, std
    mean, std = _measure(source)
    with contextlib.suppress(
        OSError, RuntimeError
    ):  # the cache may be read-only, the user without a home folder
        write_text(_cache_file(version), json.dumps({"mean": mean, "std": std}))
    return mean, std


def _cache_file(version: str) -> Path:
    return cache_folder() / "statistics" / f"{version}.json"


def _measure(source: Source) -> Statistics:
    count = min(len(source), _IMAGES)
    places = [number * len(source) // count for number in range(count)]

    def moments(place: int) -> Tensor | str:
        """E_p x and E_p x², [2, C], or why the image cannot be read."""
        try:
            image = source.decode(place)
        except decoding.DecodeError as error:
            return f"{source.paths[place]}: {error}"
        step = max(1, max(image.shape[1:]) // _SIDE)
        pixels = unit(image[:, ::step, ::step]).double().flatten(1)
        return torch.stack((pixels.mean(1), pixels.square().mean(1)))

    with ThreadPoolExecutor(available_cores()) as pool, decoding.quiet():
        found = list(pool.map(moments, places))
    read = [moment for moment in found if isinstance(moment, Tensor)]
    if not read:
        raise UserError(
            f"data '{source.title}': none of {count} images can be read, e.g. {found[-1]}"
        )
    mean, square = torch.stack(read).mean(0)
    return _rounded(mean), _rounded((square - mean.square()).clamp(min=0).sqrt())


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values.tolist())
