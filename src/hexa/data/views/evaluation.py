"""The view of an image that evaluation sees: its centre, or the whole image at its own aspect."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hexa.ops.photometric import unit

#: Images with a longer side over this many times the shorter one are not resized whole: they could grow to gigabytes.
LONGEST = 16


class EvaluationTransform:
    """Prepares images for evaluation: the centre crop (F23, F21).

    Maps uint8 [..., C, H, W] to uint8 [..., C, S, S], and uint16 and float to float in [0, 1]. Square images of at
    most S pixels are taken whole (CIFAR at 32, STL-10 at 96), enlarged if smaller. Otherwise the shorter side is
    resized to S / crop and the centre S × S is cut: 256 and 224 as published. Bilinear or bicubic, antialiased. If one
    side is more than 16 times the other, only the middle of the image is used.
    """

    def __init__(self, size: int, crop: float = 224 / 256, interpolation: str = "bilinear") -> None:
        self.size = size
        self.interpolation = interpolation
        #: Pixels of the shorter side before the cut.
        self.short = round(size / crop)

    def takes_whole(self, height: int, width: int) -> bool:
        """Whether images of this size are used whole, without a crop."""
        return height == width <= self.size

    def __call__(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        most = LONGEST * min(height, width)
        top = max(0, height - most) // 2
        left = max(0, width - most) // 2
        middle = images[..., top : top + most, left : left + most]
        batch = middle if images.ndim == 4 else middle[None]
        out = self._resized(batch if batch.dtype == torch.uint8 else unit(batch))
        return out if images.ndim == 4 else out[0]

    def _resized(self, batch: Tensor) -> Tensor:
        height, width = batch.shape[2:]
        if self.takes_whole(height, width):
            return resize(batch, self.size, self.size, self.interpolation)
        high, wide = (int(self.short * side / min(height, width)) for side in (height, width))
        top = round((high - self.size) / 2)
        left = round((wide - self.size) / 2)
        return resize(batch, high, wide, self.interpolation)[
            :, :, top : top + self.size, left : left + self.size
        ]


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
        shorter = min(height, width)
        strides = max(1, round(self.size / self.stride))
        high, wide = (round(strides * min(side / shorter, LONGEST)) for side in (height, width))
        return high * self.stride, wide * self.stride

    def _resized(self, batch: Tensor) -> Tensor:
        return resize(batch, *self.sides(*batch.shape[2:]), self.interpolation)


def resize(images: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """[B, C, H, W], uint8 or float in [0, 1] -> [B, C, height, width] of the same type, antialiased."""
    if images.shape[2:] == (height, width):
        return images
    # four times as fast on bytes, and closer to PIL, which published code resizes with
    if images.device.type == "cpu" and images.dtype == torch.uint8:
        return functional.interpolate(images, (height, width), mode=interpolation, antialias=True)
    floats = functional.interpolate(
        images.float(), (height, width), mode=interpolation, antialias=True
    )
    return (
        floats.round_().clamp_(0, 255).to(images.dtype)
        if images.dtype == torch.uint8
        else floats.clamp_(0, 1)
    )
