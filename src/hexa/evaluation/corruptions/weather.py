"""Snow, frost and fog of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), batched.

Images are float [B, 3, S, S] in [0, 1]; lengths are in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hexa.evaluation.corruptions.blurs import motion, zoomed
from hexa.evaluation.corruptions.per_image import PerImage
from hexa.ops.photometric import luma

#: Mean of the published photographs of frost (red, green, blue).
_FROST = (0.52, 0.61, 0.66)
#: How far these photographs vary.
_SPREAD = 0.3


def snow(images: Tensor, parameters: Sequence[float], scale: float, draws: PerImage) -> Tensor:
    """Flakes of thresholded, enlarged noise, blurred along a line, and again turned by 180°; the image is whitened.

    scale: what lengths are multiplied by.
    """
    mean, deviation, zoom, threshold, radius, sigma, kept = parameters
    height, width = images.shape[2:]
    flakes = zoomed(mean + deviation * draws.normal(1, height, width), zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    flakes = motion(flakes, scale * radius, scale * sigma, draws.uniform(low=-135, high=-45))
    whitened = torch.maximum(images, luma(images) * 1.5 + 0.5)
    return kept * images + (1 - kept) * whitened + flakes + flakes.rot90(2, (2, 3))


def fog(images: Tensor, strength: float, decay: float, draws: PerImage) -> Tensor:
    """A plasma fractal is added, and the whole scaled to the brightest pixel there was."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (
        (images + strength * plasma(images.shape[-1], decay, draws))
        * brightest
        / (brightest + strength)
    )


def frost(images: Tensor, kept: float, added: float, draws: PerImage) -> Tensor:
    """kept · x + added · frost. The published sets have photographs of frost, here it is a bluish plasma fractal."""
    colour = torch.tensor(_FROST, device=images.device, dtype=images.dtype).view(3, 1, 1)
    return kept * images + added * (
        colour + _SPREAD * (plasma(images.shape[-1], 1.75, draws) - 0.5)
    ).clamp(0, 1)


def plasma(size: int, decay: float, draws: PerImage) -> Tensor:
    """[B, 1, size, size] in [0, 1]: a part of a periodic height map by the diamond-square algorithm.

    The side is the next power of 2. Centres of squares, then of diamonds, become the mean of their four corners plus
    uniform noise in ± w², w = 100 at first, divided by `decay` for each halving.
    """
    side = 2 ** math.ceil(math.log2(max(size, 2)))
    noise = draws.uniform(side, side, low=-1, high=1)  # each point of the map is filled once
    made = torch.zeros_like(noise)  # [B, side, side]
    step = side
    wibble = 100.0
    while step >= 2:
        half = step // 2
        grid = slice(0, side, step)
        middle = slice(half, side, step)
        edge = wibble**2
        corners = made[:, grid, grid]
        square = corners + corners.roll(-1, 1)
        square = square + square.roll(-1, 2)
        made[:, middle, middle] = square / 4 + edge * noise[:, middle, middle]
        centres = made[:, middle, middle]
        corners = made[:, grid, grid]
        above = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        made[:, grid, middle] = above / 4 + edge * noise[:, grid, middle]
        beside = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        made[:, middle, grid] = beside / 4 + edge * noise[:, middle, grid]
        step = half
        wibble = wibble / decay
    made = made - made.amin((1, 2), keepdim=True)
    return (made / made.amax((1, 2), keepdim=True))[:, None, :size, :size]
