"""Prepares images for evaluation: resizing and centre crop."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hexa.ops.photometric import unit

#: Maximum ratio of the sides of an image that is resized whole; longer images could grow to gigabytes.
LONGEST = 16


class EvaluationTransform:
    """Resizes images and cuts the centre, for evaluation (F23, F21).

    Maps uint8 [..., C, H, W] to uint8 [..., C, S, S], and uint16 and float to float in [0, 1]. A square image of at most
    S pixels is used whole, and enlarged if it is smaller (CIFAR at 32, STL-10 at 96). For any other image, the shorter
    side is resized to S / crop and the central S × S pixels are cut, 256 and 224 in publications. Resizing is bilinear or
    bicubic, with antialiasing. If one side is more than 16 times the other, only the middle of the image is used.
    """

    def __init__(self, size: int, crop: float = 224 / 256, interpolation: str = "bilinear") -> None:
        self.size = size
        self.interpolation = interpolation
        #: Shorter side before the cut, in pixels.
        self.short = round(size / crop)

    def takes_whole(self, height: int, width: int) -> bool:
        """True if images of this size are used whole, without a crop."""
        return height == width <= self.size

    def __call__(self, images: Tensor) -> Tensor:
        if images.ndim == 3:
            return self(images[None])[0]
        height, width = images.shape[2:]
        most = LONGEST * min(height, width)
        rows = _middle(height, most)
        columns = _middle(width, most)
        middle = images[:, :, rows, columns]
        if middle.dtype != torch.uint8:
            middle = unit(middle)
        return self._resized(middle)

    def _resized(self, batch: Tensor) -> Tensor:
        size = self.size
        height, width = batch.shape[2:]
        if self.takes_whole(height, width):
            return resize(batch, size, size, self.interpolation)
        shorter = min(height, width)
        high = int(self.short * height / shorter)
        wide = int(self.short * width / shorter)
        whole = resize(batch, high, wide, self.interpolation)
        top = round((high - size) / 2)
        left = round((wide - size) / 2)
        return whole[:, :, top : top + size, left : left + size]


def _middle(length: int, most: int) -> slice:
    """Return the middle of a side, at most `most` pixels long."""
    start = max(0, length - most) // 2
    return slice(start, start + most)


def resize(images: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """Resize images [B, C, H, W], uint8 or float in [0, 1], to [B, C, height, width] of the same type, with antialiasing."""
    size = (height, width)
    if images.shape[2:] == size:
        return images
    is_bytes = images.dtype == torch.uint8
    # resizing bytes is four times faster, and closer to PIL, the resizer of published code
    if images.device.type == "cpu" and is_bytes:
        return functional.interpolate(images, size, mode=interpolation, antialias=True)
    floats = functional.interpolate(images.float(), size, mode=interpolation, antialias=True)
    if is_bytes:
        return floats.round_().clamp_(0, 255).to(images.dtype)
    return floats.clamp_(0, 1)
