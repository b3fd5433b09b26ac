"""Normalisation per channel as the first layer, so that pixels outside the network are always in
[0, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import shorten
from typing import Any, cast

import torch
from torch import Tensor, nn

from hexa.config import UserError

Channels = tuple[float, ...]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)

#: Reason to refuse a mean or standard deviation that is not of pixels in [0, 1].
OF_OTHER_PIXELS = (
    "must be from 0 to 1, because pixels are; divide values for pixels up to 255 by 255"
)


def mean_of(values: object, channels: int | None = None) -> Channels:
    """Check and return numbers from 0 to 1, one per channel. Raises UserError."""
    return _numbers("mean", values, -math.inf, channels)


def std_of(values: object, channels: int) -> Channels:
    """Check and return numbers above 0 and at most 1, one per channel. Raises UserError."""
    return _numbers("std", values, 0, channels)


def _numbers(name: str, values: object, above: float, channels: int | None) -> Channels:
    try:
        numbers = [
            math.nan if isinstance(value, str | bool) else float(value)
            for value in cast(Any, values)
        ]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    fits = len(numbers) == (channels or len(numbers) or None)
    if not fits or not all(above < number < math.inf for number in numbers):
        kind = f"{channels or ''} numbers".strip() + (" above 0" if above == 0 else "")
        raise UserError(
            f"{name} must be {kind}, one per channel, got {shorten(repr(values), 80, placeholder=' …')}"
        )
    if not of_unit_pixels(numbers):
        raise UserError(
            f"{name} {OF_OTHER_PIXELS}, got {shorten(repr(values), 80, placeholder=' …')}"
        )
    return tuple(numbers)


def of_unit_pixels(values: Sequence[float]) -> bool:
    """Return True if these can be means or standard deviations of pixels in [0, 1]."""
    return all(0 <= value <= 1 for value in values)


class Normalize(nn.Module):
    """x = (u − mean_c) / std_c for pixels u in [0, 1], [B, C, S, S]; not saved in checkpoints (F1).

    Raises UserError for integer pixels or another number of channels (one channel would be
    broadcast silently).
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        scale = 1 / torch.tensor(std, dtype=torch.float64)
        shift = -torch.tensor(mean, dtype=torch.float64) * scale
        self.scale = nn.Buffer(scale.float().view(1, -1, 1, 1), persistent=False)
        self.shift = nn.Buffer(shift.float().view(1, -1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        channels = self.scale.shape[1]
        if pixels.ndim != 4 or pixels.shape[1] != channels:
            raise UserError(
                f"images of shape {list(pixels.shape)} for a network of {channels} "
                f"channels; give [B, {channels}, S, S], or set network.channels"
            )
        if not pixels.dtype.is_floating_point:  # integer arithmetic would round the scale
            raise UserError(
                f"images are {pixels.dtype}; give floats in [0, 1], such as images.float() / 255"
            )
        return torch.addcmul(self.shift.to(pixels.dtype), pixels, self.scale.to(pixels.dtype))
