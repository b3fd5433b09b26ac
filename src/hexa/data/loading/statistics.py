"""Measures mean and standard deviation of each channel of a source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.data.loading.store import available_cores
from hexa.data.sources.decode import DecodeError, quiet, unit
from hexa.data.sources.source import Source

#: Number of measured images, evenly spread over the source.
_IMAGES = 2048
#: Sides of more pixels are sub-sampled.
_SIDE = 1024
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def measured(source: Source) -> Statistics:
    """Return mean and standard deviation of each channel, for pixels in [0, 1], with four digits.

    μ_c = E_i E_p x, σ_c² = E_i E_p x² − μ_c² over the pixels p of each image i, for at most 2,048 images; large images
    are sampled at every k-th row and column. Unreadable images are skipped. Raises UserError if no image is readable.
    """
    count = min(len(source), _IMAGES)
    positions = [number * len(source) // count for number in range(count)]

    def moments(position: int) -> Tensor | str:
        """Return E_p x and E_p x², [2, C], or the reason why the image is unreadable."""
        try:
            image = source.decode(position)
        except DecodeError as error:
            return f"{source.paths[position]}: {error}"
        step = max(1, max(image.shape[1:]) // _SIDE)
        pixels = unit(image[:, ::step, ::step]).double().flatten(1)
        return torch.stack((pixels.mean(1), pixels.square().mean(1)))

    with ThreadPoolExecutor(available_cores()) as pool, quiet():
        found = list(pool.map(moments, positions))
    read = [moment for moment in found if isinstance(moment, Tensor)]
    if not read:
        raise UserError(
            f"data '{source.title}': none of {count} images can be read, e.g. {found[-1]}"
        )
    mean, square = torch.stack(read).mean(0)
    std = (square - mean.square()).clamp(min=0).sqrt()
    return _rounded(mean), _rounded(std)


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values.tolist())
