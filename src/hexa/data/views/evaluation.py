"""The view of an image that evaluation sees: its centre, or the whole image at its own aspect."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hexa.ops.photometric import unit

#: Images with a longer side over this many times the shorter one are not resized whole: they could grow to gigabytes.
LONGEST = 16


class Transform(Protocol):
    """Prepares images for evaluation: uint8 [..., C, H, W] to uint8 [..., C, S, S], others to float in [0, 1]."""

    size: int

    def __call__(self, images: Tensor) -> Tensor: ...


class EvaluationTransform:
    """The centre crop of an image (F23, F21).

    Maps uint8 [..., C, H, W] to uint8 [..., C, S, S], and uint16 and float to float in [0, 1]. Square images of at
    most S pixels are taken whole (CIFAR at 32, STL-10 at 96), enlarged if smaller. Otherwise the shorter side is
    resized to S / crop and the centre S × S is cut: 256 and 224 as published. Bilinear or bicubic, antialiased. If one
    side is more than 16 times the other, only that centre is computed; its pixels equal those of resizing the whole
    image up to rounding, one grey level (bilinear) or two (bicubic).
    """

    def __init__(self, size: int, crop: float = 224 / 256, interpolation: str = "bilinear") -> None:
        self.size, self.crop, self.interpolation = size, crop, interpolation

    @property
    def short(self) -> int:
        """Pixels of the shorter side before the cut."""
        return round(self.size / self.crop)

    def takes_whole(self, height: int, width: int) -> bool:
        """Whether images of this size are used whole, without a crop."""
        return height == width <= self.size

    def __call__(self, images: Tensor) -> Tensor:
        single = images.ndim == 3
        batch = images[None] if single else images
        batch = batch if batch.dtype == torch.uint8 else unit(batch)
        height, width = batch.shape[2:]
        if self.takes_whole(height, width):
            out = resize(batch, self.size, self.size, self.interpolation)
        else:
            short = self.short
            resized_h = short if height <= width else int(short * height / width)
            resized_w = short if width <= height else int(short * width / height)
            top, left = round((resized_h - self.size) / 2), round((resized_w - self.size) / 2)
            if max(height, width) > LONGEST * min(height, width):
                above, rows = _part(height, resized_h, top, self.size, self.interpolation)
                beside, columns = _part(width, resized_w, left, self.size, self.interpolation)
                part = batch[:, :, above, beside].float()
                wide = _as(batch.dtype, part @ columns.T.to(part.device)).float()  # as where bytes are resized
                out = _as(batch.dtype, rows.to(part.device) @ wide)
            else:
                resized = resize(batch, resized_h, resized_w, self.interpolation)
                out = resized[:, :, top : top + self.size, left : left + self.size]
        return out[0] if single else out


def _part(extent: int, resized: int, first: int, count: int, interpolation: str) -> tuple[slice, Tensor]:
    """The pixels of an axis that determine pixels first … first + count − 1 of the resized axis, and their weights.

    The weights [count, pixels] of a pixel at x for a resized one at c are w(|x − c| / s), normalised, with
    s = max(extent / resized, 1). Bilinear: w(d) = 1 − d for d < 1. Bicubic: (3d³ − 5d² + 2) / 2 for d < 1 and
    (−d³ + 5d² − 8d + 4) / 2 for d < 2.
    """
    step = extent / resized
    scale, reach = max(step, 1.0), 2 if interpolation == "bicubic" else 1
    centers = (torch.arange(first, first + count, dtype=torch.float64) + 0.5) * step
    low = max(0, math.floor(float(centers[0]) - reach * scale))
    high = min(extent, math.ceil(float(centers[-1]) + reach * scale))
    distance = (torch.arange(low, high, dtype=torch.float64) + 0.5 - centers[:, None]).abs_() / scale  # [count, pixels]
    if interpolation == "bicubic":
        near, far = 3 * distance**3 - 5 * distance**2 + 2, -(distance**3) + 5 * distance**2 - 8 * distance + 4
        weights = torch.where(distance < 1, near, far).where(distance < 2, 0)
    else:
        weights = (1 - distance).clamp_(min=0)
    return slice(low, high), (weights / weights.sum(1, keepdim=True)).float()


def resize(images: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """[B, C, H, W], uint8 or float in [0, 1] -> [B, C, height, width] of the same type, antialiased."""
    if images.shape[2:] == (height, width):
        return images
    # four times as fast on bytes, and closer to PIL, which published code resizes with
    if images.device.type == "cpu" and images.dtype == torch.uint8:
        return functional.interpolate(images, (height, width), mode=interpolation, antialias=True)
    floats = functional.interpolate(images.float(), (height, width), mode=interpolation, antialias=True)
    return _as(images.dtype, floats)


def _as(dtype: torch.dtype, floats: Tensor) -> Tensor:
    """Round and clip floats to pixels of this type."""
    return floats.round_().clamp_(0, 255).to(dtype) if dtype == torch.uint8 else floats.clamp_(0, 1)


class OwnAspect(EvaluationTransform):
    """The whole image, its shorter side resized to `size`, both sides rounded to multiples of `stride`.

    Maps [C, H, W] or [B, C, H, W] to [C, h, w] or [B, C, h, w], uint8 as uint8, others as float in [0, 1]. Bilinear or
    bicubic, antialiased. If one side is more than 16 times the other, only the middle of the image is used.
    """

    def __init__(self, size: int, stride: int, interpolation: str = "bilinear") -> None:
        super().__init__(size, 1.0, interpolation)
        self.stride = stride

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """(h, w) after the transform."""
        shorter, strides = min(height, width), max(1, round(self.size / self.stride))
        high, wide = (round(strides * min(side / shorter, LONGEST)) for side in (height, width))
        return high * self.stride, wide * self.stride

    def __call__(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        most = LONGEST * min(height, width)
        top, left = max(0, height - most) // 2, max(0, width - most) // 2
        middle = images[..., top : top + most, left : left + most]
        batch = middle[None] if images.ndim == 3 else middle
        batch = batch if batch.dtype == torch.uint8 else unit(batch)
        resized = resize(batch, *self.sides(height, width), self.interpolation)
        return resized[0] if images.ndim == 3 else resized
