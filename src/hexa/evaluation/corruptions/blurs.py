"""The blurs and distortions of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), batched.

Images are float [B, 3, H, W] in [0, 1]; lengths are in pixels.
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
    images: Tensor, sigma: float, border: Literal["edge", "symmetric"], truncate: float = 4.0
) -> Tensor:
    """Gaussian blur of [..., H, W] by kernels of int(truncate · σ + ½) pixels to either side.

    border: as in numpy.pad; edge repeats the pixel at the edge, symmetric mirrors at the edge itself (c b a | a b c).
    """
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return images
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma).square())
    weights /= weights.sum()

    def matrix(size: int) -> Tensor:  # [size, size]
        seen = torch.from_numpy(np.pad(np.arange(size), radius, border)).unfold(
            0, len(offsets), 1
        )  # [size, taps]
        made = torch.zeros(size, size, dtype=torch.float64)
        made.scatter_add_(1, seen, weights.expand(size, -1))
        return made.to(images.device, images.dtype)

    height, width = images.shape[-2:]
    return matrix(height) @ images @ matrix(width).T


def defocus(images: Tensor, radius: float, alias: float) -> Tensor:
    """A disk of this radius, its edge softened by a small Gaussian of deviation `alias`; mirrored at border pixels."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    at = torch.arange(-reach, reach + 1.0)
    disk = (at.square() + at.square()[:, None] <= radius**2).double()
    half = 1 if radius <= 8 else 2  # of the kernel that softens
    soft = torch.exp(-0.5 * (torch.arange(-half, half + 1.0).double() / alias).square())
    soft = torch.outer(soft, soft)
    disk = F.pad((disk / disk.sum())[None, None], (half,) * 4, mode="reflect")
    kernel = F.conv2d(disk, (soft / soft.sum())[None, None])
    cut = max(0, min(reach - math.ceil(radius) - half, reach))  # what is zero all around
    kernel = kernel[..., cut : kernel.shape[2] - cut, cut : kernel.shape[3] - cut].to(images)
    pad = kernel.shape[-1] // 2
    channels = images.shape[1]
    return F.conv2d(
        F.pad(images, (pad,) * 4, mode="reflect"),
        kernel.expand(channels, 1, -1, -1),
        groups=channels,
    )


def glass(images: Tensor, sigma: float, length: float, times: int, draws: PerImage) -> Tensor:
    """Blurred, every pixel replaced by one at most `length` away, one after the other, `times` over, blurred again.

    As in the published sets, the neighbour is copied, not swapped: assigning views of an array swaps nothing.
    """
    (batch, _, height, width), reach = images.shape, max(1, round(length))
    blurred = (smoothed(images, sigma, "edge") * 255 + 1e-3).floor().div_(255)
    source = np.tile(np.arange(height * width), (batch, 1))  # [B, H·W]: where each pixel is from
    moves = draws.integers(-reach, reach, times, height, width, 2).cpu().numpy()
    every = np.arange(batch)
    for again in range(times):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                step = moves[:, again, row, column]  # [B, 2]
                source[:, row * width + column] = source[
                    every, (row + step[:, 1]) * width + column + step[:, 0]
                ]
    index = torch.from_numpy(source).to(images.device)[:, None].expand(-1, images.shape[1], -1)
    return smoothed(blurred.flatten(2).gather(2, index).view_as(images), sigma, "edge")


def motion(images: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """Each pixel becomes a mean over those on a line from it, weights ∝ exp(−k² / 2σ²), k = 0 … 2·radius.

    degrees: [B], the direction of the line; pixels at the edge are repeated. As ImageMagick's MotionBlurImage.
    """
    batch, _, height, width = images.shape
    taps = torch.arange(2 * max(1, round(radius)) + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (taps / sigma).square())
    weights /= weights.sum()
    angle = torch.deg2rad(degrees.cpu().double())[:, None]
    down = torch.ceil(taps * angle.sin() - 0.5).long().to(images.device)  # [B, taps]
    right = torch.ceil(taps * angle.cos() - 0.5).long().to(images.device)
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    every = torch.arange(batch, device=images.device)[:, None, None]
    pixels = images.permute(0, 2, 3, 1)
    made = torch.zeros_like(images).permute(0, 2, 3, 1)
    for tap, weight in enumerate(weights.tolist()):
        y = (rows + down[:, tap, None]).clamp(0, height - 1)[:, :, None]
        x = (columns + right[:, tap, None]).clamp(0, width - 1)[:, None, :]
        made += weight * pixels[every, y, x]
    return made.permute(0, 3, 1, 2)


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


def zoom_blur(images: Tensor, end: float, step: float) -> Tensor:
    """The mean of the image and of itself enlarged by 1, 1 + step, … up to below `end`."""
    factors = np.arange(1, end, step).tolist()
    total = images.clone()
    for factor in factors:
        total += zoomed(images, factor)
    return total / (len(factors) + 1)


def elastic(images: Tensor, alpha: float, sigma: float, affine: float, draws: PerImage) -> Tensor:
    """An affine map that moves three points by at most `affine`, then displacements: α times smoothed uniform noise.

    The points are the centre and what is a third of the side from it, along diagonals.
    """
    batch, _, height, width = images.shape
    centre = torch.tensor([height // 2, width // 2])
    part = min(height, width) // 3
    points = (centre + part * torch.tensor([[1, 1], [1, -1], [-1, -1]])).double()  # [3, 2], (x, y)
    moved = points + draws.uniform(3, 2, low=-affine, high=affine).cpu().double()  # [B, 3, 2]
    # where a pixel of the result is taken from: the inverse of the map of points to moved
    back = torch.linalg.solve(
        F.pad(moved, (0, 1), value=1.0), points.expand(batch, 3, 2)
    )  # [B, 3, 2]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    here = torch.stack([x, y, torch.ones_like(x)], -1).double()  # [H, W, 3]
    out = _sampled(
        images, (here.view(1, -1, 3) @ back).view(batch, height, width, 2).to(images), corners=True
    )
    noise = torch.stack(
        [draws.uniform(height, width, low=-1, high=1) for _ in range(2)], -1
    )  # dx, dy
    shift = alpha * smoothed(noise.movedim(-1, 1), sigma, "symmetric", truncate=3).movedim(1, -1)
    return _sampled(out, here[..., :2].to(images) + shift, corners=False)


def _sampled(images: Tensor, at: Tensor, corners: bool) -> Tensor:
    """Bilinear, at (x, y) [B, H, W, 2] in pixels; mirrored at border pixels (`corners`) or at the edge beyond them."""
    size = torch.tensor(
        [images.shape[3], images.shape[2]], device=images.device, dtype=images.dtype
    )
    grid = 2 * at / (size - 1) - 1 if corners else (2 * at + 1) / size - 1
    return F.grid_sample(
        images, grid, mode="bilinear", padding_mode="reflection", align_corners=corners
    )
