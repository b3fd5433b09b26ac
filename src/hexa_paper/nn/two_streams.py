"""Two networks behind a change of colour space: one of lightness, one of colour (CMC; F29)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hexa.config import UserError
from hexa.nn.backbones import NetworkConfig, build as build_one, num_features
from hexa.nn.normalize import Channels

#: sRGB with white D65 (IEC 61966-2-1): linear RGB to XYZ, each divided by that of white.
_WHITE = (0.95047, 1.0, 1.08883)
_TO_XYZ = (
    (0.412453, 0.357580, 0.180423),
    (0.212671, 0.715160, 0.072169),
    (0.019334, 0.119193, 0.950227),
)
#: sRGB is linear up to here.
_DARK = 0.04045
#: Lab is linear up to the cube of this share of white.
_DELTA = 6 / 29
#: The middle and half the range that L, a and b have over all of RGB; these are brought to −1 … 1, as published.
_MIDDLE = (50.0, (98.233 - 86.183) / 2, (94.478 - 107.857) / 2)
_HALF_RANGE = (50.0, (98.233 + 86.183) / 2, (94.478 + 107.857) / 2)


def lab(pixels: Tensor) -> Tensor:
    """CIE L*a*b* of sRGB pixels in [0, 1], [B, 3, H, W]: L in 0 … 100, a and b within about ±108.

        linear u = u / 12.92                     where u ≤ 0.04045, else ((u + 0.055) / 1.055)^2.4
        f(t)     = t / (3δ²) + 4/29              where t ≤ δ³,      else ∛t,        δ = 6/29
        L = 116·f(Y) − 16,  a = 500·(f(X) − f(Y)),  b = 200·(f(Y) − f(Z)),  X, Y, Z by their value for white

    The gradient is finite everywhere, at black too: what is selected away is never evaluated where its slope is not.
    """
    base = ((pixels + 0.055) / 1.055).clamp_min((_DARK + 0.055) / 1.055)
    red, green, blue = torch.where(pixels <= _DARK, pixels / 12.92, base**2.4).unbind(1)
    f = []
    for (of_red, of_green, of_blue), white in zip(_TO_XYZ, _WHITE, strict=True):
        # a product of matrices would be autocast
        t = (of_red * red + of_green * green + of_blue * blue) / white
        line = t / (3 * _DELTA**2) + 4 / 29
        root = t.clamp_min(_DELTA**3) ** (1 / 3)
        f.append(torch.where(t <= _DELTA**3, line, root))
    x, y, z = f
    lightness = 116 * y - 16
    a = 500 * (x - y)
    b = 200 * (y - z)
    return torch.stack((lightness, a, b), 1)


def _a_channel_each(values: Sequence[float]) -> nn.Buffer:
    """Numbers to combine with images [B, C, H, W], one for each channel; not saved in checkpoints."""
    return nn.Buffer(torch.tensor(values).view(-1, 1, 1), persistent=False)


class TwoStreams(nn.Module):
    """Normalised RGB images [B, 3, S, S] -> features [B, 2·F]: `lightness` of L, then `colour` of a and b.

    lightness, colour: networks of 1 and of 2 channels with F features each. mean, std: what the images are normalised
    with, which is undone; L, a and b are then brought to −1 … 1.
    """

    def __init__(
        self,
        lightness: nn.Module,
        colour: nn.Module,
        width: int,
        mean: Channels,
        std: Channels,
    ) -> None:
        super().__init__()
        self.lightness = lightness
        self.colour = colour
        self.num_features = 2 * width
        self.mean = _a_channel_each(mean or (0.0,))
        self.std = _a_channel_each(std or (1.0,))
        self.middle = _a_channel_each(_MIDDLE)
        self.half_range = _a_channel_each(_HALF_RANGE)
        #: The networks, whose stages are in common, by name.
        self.streams = {"lightness": lightness, "colour": colour}
        # as timm's networks tell how their maps are laid out
        self.output_fmt = getattr(lightness, "output_fmt", "NCHW")

    def channels(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """L [B, 1, S, S], and a and b [B, 2, S, S], within −1 … 1."""
        pixels = images * self.std + self.mean
        normalized = (lab(pixels) - self.middle) / self.half_range
        return normalized[:, :1], normalized[:, 1:]

    def forward_features(self, images: Tensor) -> Tensor:
        """The maps of both streams, joined along their channels."""
        lightness, colour = self.channels(images)
        networks: Any = self
        maps = [
            networks.lightness.forward_features(lightness),
            networks.colour.forward_features(colour),
        ]
        first = maps[0].ndim == 4 and self.output_fmt != "NHWC"
        return torch.cat(maps, 1 if first else -1)

    def forward(self, images: Tensor) -> Tensor:
        lightness, colour = self.channels(images)
        return torch.cat([self.lightness(lightness), self.colour(colour)], 1)


def build(config: NetworkConfig) -> TwoStreams:
    """The networks of `network.streams: lab`, with weights from torch's global generator. Raises UserError."""
    if config.channels != 3:
        problem = f"lab takes RGB images, not {config.channels} channels"
        raise UserError(f"network.streams: {problem}; use one")
    of_lightness = config.model_copy(update={"streams": "one", "channels": 1})
    of_colour = config.model_copy(update={"streams": "one", "channels": 2})
    lightness = build_one(of_lightness)
    colour = build_one(of_colour)
    width = num_features(lightness, 1)
    return TwoStreams(lightness, colour, width, config.mean, config.std)
