"""The digital corruptions of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), batched.

Images are float [B, 3, S, S] in [0, 1]; lengths are in pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.io import decode_jpeg, encode_jpeg

from hexa.evaluation.corruptions.blurs import smoothed
from hexa.evaluation.corruptions.per_image import PerImage


def contrast(
    images: Tensor,
    draws: PerImage,
    kept: float,
) -> Tensor:
    """Towards the mean of each channel."""
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * kept + mean


def elastic_transform(
    images: Tensor,
    draws: PerImage,
    alpha: float,
    sigma: float,
    affine: float,
) -> Tensor:
    """An affine map that moves three points by at most `affine`, then displacements: α times smoothed uniform noise.

    The points are what is a third of the side from the centre, along diagonals.
    """
    size = images.shape[-1]
    corners = torch.tensor([[1.0, 1], [1, -1], [-1, -1]], dtype=torch.float64)
    points = size // 2 + size // 3 * corners  # [3, 2], (x, y)
    moved = points + draws.uniform(3, 2, low=-affine, high=affine).cpu().double()  # [B, 3, 2]
    # the inverse of the map of points to moved says where a pixel of the result is taken from
    inverse = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), points.expand_as(moved))
    axis = torch.arange(size, dtype=torch.float64)
    here = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)  # [S, S, 2]
    there = here @ inverse[:, None, :2] + inverse[:, None, 2:]  # [B, S, S, 2]
    mapped = _sampled(images, there, mirror_at_pixels=True)
    noise = [draws.uniform(size, size, low=-1, high=1) for _ in range(2)]
    shift = alpha * smoothed(torch.stack(noise, 1), sigma, "reflect", truncate=3)
    return _sampled(mapped, here + shift.cpu().movedim(1, -1), mirror_at_pixels=False)


def _sampled(
    images: Tensor,
    at: Tensor,
    mirror_at_pixels: bool,
) -> Tensor:
    """Bilinear, at (x, y) [B, S, S, 2] in pixels; mirrored at border pixels or at the edge beyond them."""
    size = images.shape[-1]
    grid = 2 * at / (size - 1) - 1 if mirror_at_pixels else (2 * at + 1) / size - 1
    how = {"padding_mode": "reflection", "align_corners": mirror_at_pixels}
    return F.grid_sample(images, grid.to(images), mode="bilinear", **how)  # type: ignore[arg-type]


def pixelate(
    images: Tensor,
    draws: PerImage,
    share: float,
) -> Tensor:
    """To a share of the side and back, each pixel the mean of those that it covers."""
    size = images.shape[-1]
    small = int(size * share)
    made = []
    for pixels in _levels(images).permute(0, 2, 3, 1).numpy():
        picture = Image.fromarray(pixels).resize((small, small), Image.Resampling.BOX)
        made.append(np.asarray(picture.resize((size, size), Image.Resampling.BOX)))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).to(images) / 255


def jpeg_compression(
    images: Tensor,
    draws: PerImage,
    quality: int,
) -> Tensor:
    """Compressed and decompressed."""
    made = [decode_jpeg(encode_jpeg(image, quality)) for image in _levels(images)]
    return torch.stack(made).to(images) / 255


def _levels(images: Tensor) -> Tensor:
    """Grey levels as uint8, on the CPU."""
    return (images * 255).round().to(torch.uint8).cpu()
