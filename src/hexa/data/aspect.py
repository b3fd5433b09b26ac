"""Images that keep their own aspect."""

from __future__ import annotations

import torch
from torch import Tensor

from hexa.data.evaluation_transform import LONGEST, EvaluationTransform, resize
from hexa.ops.photometric import unit


class OwnAspect(EvaluationTransform):
    """The whole image, its shorter side resized to `size`, both sides rounded to multiples of `stride`.

    Takes [C, H, W] or [B, C, H, W] to [C, h, w] or [B, C, h, w], uint8 as uint8, others as float in [0, 1]. Bilinear or
    bicubic, antialiased. Of an image more than 16 times as long as wide the middle alone is seen, so that a strip of a
    few kilobytes does not grow to gigabytes.
    """

    def __init__(self, size: int, stride: int, interpolation: str = "bilinear") -> None:
        super().__init__(size, 1.0, interpolation)
        self.stride = stride

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """(h, w) of what an image of these pixels becomes."""
        shorter, strides = min(height, width), max(1, round(self.size / self.stride))
        high, wide = (round(strides * min(side / shorter, LONGEST)) for side in (height, width))
        return high * self.stride, wide * self.stride

    def __call__(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        most = LONGEST * min(height, width)
        top, left = max(0, height - most) // 2, max(0, width - most) // 2
        middle = images[..., top : top + most, left : left + most]
        batch = middle[None] if images.ndim == 3 else middle
        out = resize(
            batch if batch.dtype == torch.uint8 else unit(batch), *self.sides(height, width), self.interpolation
        )
        return out[0] if images.ndim == 3 else out
