"""The weather of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), batched.

Images are float [B, 3, S, S] in [0, 1]; lengths are in pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hexa.evaluation.corruptions.blurs import line_blur, zoomed
from hexa.evaluation.corruptions.per_image import PerImage
from hexa.ops.photometric import luma

#: Mean of the published photographs of frost (red, green, blue).
_FROST = (0.52, 0.61, 0.66)
#: How far these photographs vary.
_SPREAD = 0.3


def snow(
    images: Tensor,
    draws: PerImage,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Tensor:
    """Flakes of thresholded, enlarged noise, blurred along a line, and again turned by 180°; the image is whitened."""
    size = images.shape[-1]
    flakes = zoomed(mean + deviation * draws.normal(1, size, size), zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    flakes = line_blur(flakes, radius, sigma, draws.uniform(low=-135, high=-45))
    whitened = torch.maximum(images, luma(images) * 1.5 + 0.5)
    return kept * images + (1 - kept) * whitened + flakes + flakes.rot90(2, (2, 3))


def frost(
    images: Tensor,
    draws: PerImage,
    kept: float,
    added: float,
) -> Tensor:
    """kept · x + added · frost. The published sets have photographs of frost, here it is a bluish plasma fractal."""
    colour = torch.tensor(_FROST, device=images.device, dtype=images.dtype).view(3, 1, 1)
    texture = colour + _SPREAD * (plasma(images.shape[-1], 1.75, draws) - 0.5)
    return kept * images + added * texture.clamp(0, 1)


def fog(
    images: Tensor,
    draws: PerImage,
    strength: float,
    decay: float,
) -> Tensor:
    """A plasma fractal is added, and the whole scaled to the brightest pixel there was."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    foggy = images + strength * plasma(images.shape[-1], decay, draws)
    return foggy * brightest / (brightest + strength)


def plasma(
    size: int,
    decay: float,
    draws: PerImage,
) -> Tensor:
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
        grid = slice(0, side, step)
        middle = slice(step // 2, side, step)
        added = wibble**2 * noise
        # centres of squares
        corners = made[:, grid, grid]
        square = corners + corners.roll(-1, 1)
        square = square + square.roll(-1, 2)
        centres = square / 4 + added[:, middle, middle]
        made[:, middle, middle] = centres
        # centres of diamonds
        above = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        made[:, grid, middle] = above / 4 + added[:, grid, middle]
        beside = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        made[:, middle, grid] = beside / 4 + added[:, middle, grid]
        step = step // 2
        wibble = wibble / decay
    made = made - made.amin((1, 2), keepdim=True)
    return (made / made.amax((1, 2), keepdim=True))[:, None, :size, :size]


def brightness(
    images: Tensor,
    draws: PerImage,
    added: float,
) -> Tensor:
    """HSV value + added, clipped; hue and saturation stay."""
    value = images.amax(1, keepdim=True)
    target = (value + added).clamp(max=1)
    return torch.where(value > 0, images * (target / value.clamp(min=1e-12)), target)
