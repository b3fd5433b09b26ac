"""Mean and standard deviation of each channel over a source, measured once and kept."""

from __future__ import annotations

import contextlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.data import decode as decoding
from hexa.data.named import cache_folder
from hexa.data.source import Source, digest
from hexa.data.store import available_cores
from hexa.ops.photometric import unit
from hexa.runtime import parsing
from hexa.runtime.files import write_whole

#: Images that are looked at, evenly spread over the source, and pixels of each side of them at most.
_IMAGES, _SIDE = 2048, 1024
#: Goes up with every change of how it is measured.
_MEASURED = 1
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def measured(source: Source) -> Statistics:
    """Mean and standard deviation of each channel, pixels in [0, 1], to four digits.

    μ_c = E_i E_p x, σ_c² = E_i E_p x² − μ_c² over the pixels p of each image i: of at most 2,048 images, of large ones
    every k-th row and column. Images that cannot be read are passed over. Kept under HEXA_CACHE for as long as the
    files are the same. Raises UserError if no image can be read.
    """
    version = digest(source.version(), source.split, str((source.max_image_pixels, source.channels, _MEASURED)))
    with contextlib.suppress(OSError, RuntimeError, UserError, ValueError, TypeError, KeyError):
        kept = parsing.from_json(parsing.read_text(_kept(version), 2**16))
        mean, std = (tuple(map(float, kept[name])) for name in ("mean", "std"))
        if len(mean) == len(std) == source.channels and all(map(math.isfinite, (*mean, *std))):
            return mean, std
    mean, std = _measured(source)
    with contextlib.suppress(OSError, RuntimeError):  # a cache may be read-only, and a user without a home
        text = json.dumps({"mean": mean, "std": std})
        write_whole(_kept(version), lambda file: file.write(text.encode()))
    return mean, std


def _kept(version: str) -> Path:
    return cache_folder() / "statistics" / f"{version}.json"


def _measured(source: Source) -> Statistics:
    count = min(len(source), _IMAGES)
    places = [number * len(source) // count for number in range(count)]
    failure = None

    def moments(place: int) -> Tensor | None:
        """E_p x and E_p x², [2, C]."""
        nonlocal failure
        try:
            image = source.decode(place)
        except decoding.DecodeError as error:
            failure = f"{source.paths[place]}: {error}"
            return None
        step = max(1, max(image.shape[1:]) // _SIDE)
        pixels = unit(image[:, ::step, ::step]).double().flatten(1)
        return torch.stack((pixels.mean(1), pixels.square().mean(1)))

    with ThreadPoolExecutor(available_cores()) as pool, decoding.quiet():
        found = [one for one in pool.map(moments, places) if one is not None]
    if not found:
        raise UserError(f"data '{source.name}#{source.split}': no image can be read, not {failure} either")
    mean, square = torch.stack(found).mean(0)
    std = (square - mean.square()).clamp(min=0).sqrt()
    return _rounded(mean), _rounded(std)


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values.tolist())
