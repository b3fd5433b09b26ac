"""The blurs of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), batched.

Images are float [B, 3, S, S] in [0, 1]; lengths are in pixels.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.evaluation.corruptions.per_image import PerImage


def smoothed(
    images: Tensor,
    sigma: float,
    border: Literal["nearest", "reflect"],
    truncate: float = 4.0,
) -> Tensor:
    """Gaussian blur of [B, C, S, S]; border and truncate as in `scipy.ndimage.gaussian_filter`."""
    pixels = images.cpu().numpy()
    from scipy import ndimage  # a quarter of a second, which plans do without

    made = ndimage.gaussian_filter(pixels, (0, 0, sigma, sigma), mode=border, truncate=truncate)
    return torch.from_numpy(made).to(images)


def defocus_blur(
    images: Tensor,
    draws: PerImage,
    radius: float,
    alias: float,
) -> Tensor:
    """A disk of this radius, its edge softened by a small Gaussian of deviation `alias`; mirrored at border pixels."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    softened = 1 if radius <= 8 else 2  # pixels to either side
    at = np.arange(-reach, reach + 1)
    disk = (at[:, None] ** 2 + at**2 <= radius**2).astype(np.float64)
    from scipy import ndimage

    kernel = ndimage.gaussian_filter(disk / disk.sum(), alias, mode="mirror", radius=softened)
    made = ndimage.correlate(images.cpu().numpy(), kernel[None, None], mode="mirror")
    return torch.from_numpy(made).to(images)


def glass_blur(
    images: Tensor,
    draws: PerImage,
    sigma: float,
    length: float,
    times: int,
) -> Tensor:
    """Blurred, every pixel replaced by one at most `length` away, one after the other, `times` over, blurred again.

    As in the published sets, the neighbour is copied, not swapped: assigning views of an array swaps nothing.
    """
    batch, channels, size, _ = images.shape
    reach = max(1, round(length))
    source = np.tile(np.arange(size * size), (batch, 1))  # [B, S·S]: where each pixel is from
    moves = draws.integers(-reach, reach, times, size, size, 2).cpu().numpy()
    every = np.arange(batch)
    for again in range(times):
        for row in range(size - reach, reach, -1):
            for column in range(size - reach, reach, -1):
                right, down = moves[:, again, row, column].T  # [B]
                neighbour = (row + down) * size + column + right
                source[:, row * size + column] = source[every, neighbour]
    index = torch.from_numpy(source).to(images.device)[:, None].expand(-1, channels, -1)
    blurred = (smoothed(images, sigma, "nearest") * 255 + 1e-3).floor().div_(255)
    return smoothed(blurred.flatten(2).gather(2, index).view_as(images), sigma, "nearest")


def motion_blur(
    images: Tensor,
    draws: PerImage,
    radius: float,
    sigma: float,
) -> Tensor:
    """Blurred along a line within 45° of the rows."""
    return line_blur(images, radius, sigma, draws.uniform(low=-45, high=45))


def line_blur(
    images: Tensor,
    radius: float,
    sigma: float,
    degrees: Tensor,
) -> Tensor:
    """Each pixel becomes a mean over those on a line from it, weights ∝ exp(−k² / 2σ²), k = 0 … 2·radius.

    degrees: [B], the direction of the line; pixels at the edge are repeated. As ImageMagick's MotionBlurImage.
    """
    size = images.shape[-1]
    taps = torch.arange(2 * max(1, round(radius)) + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (taps / sigma).square())
    weights /= weights.sum()
    angle = torch.deg2rad(degrees.cpu().double())[:, None]
    down = torch.ceil(taps * angle.sin() - 0.5).long().to(images.device)  # [B, taps]
    right = torch.ceil(taps * angle.cos() - 0.5).long().to(images.device)
    at = torch.arange(size, device=images.device)
    every = torch.arange(len(images), device=images.device)[:, None, None]
    pixels = images.permute(0, 2, 3, 1)
    made = torch.zeros_like(pixels)
    for tap, weight in enumerate(weights.tolist()):
        row = (at + down[:, tap, None]).clamp(0, size - 1)  # [B, S]
        column = (at + right[:, tap, None]).clamp(0, size - 1)
        made += weight * pixels[every, row[:, :, None], column[:, None]]
    return made.permute(0, 3, 1, 2)


def zoom_blur(
    images: Tensor,
    draws: PerImage,
    end: float,
    step: float,
) -> Tensor:
    """The mean of the image and of itself enlarged by 1, 1 + step, … up to below `end`."""
    factors = np.arange(1, end, step).tolist()
    total = images.clone()
    for factor in factors:
        total += zoomed(images, factor)
    return total / (len(factors) + 1)


def zoomed(images: Tensor, factor: float) -> Tensor:
    """The centre of square images, enlarged by `factor` to their own size, bilinear from corner to corner."""
    size = images.shape[-1]
    part = math.ceil(size / factor)
    top = (size - part) // 2
    larger = round(part * factor)
    centre = images[:, :, top : top + part, top : top + part]
    out = F.interpolate(centre, (larger, larger), mode="bilinear", align_corners=True)
    trim = (larger - size) // 2
    return out[:, :, trim : trim + size, trim : trim + size]
