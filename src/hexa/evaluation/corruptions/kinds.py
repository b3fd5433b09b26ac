"""The fifteen corruptions of ImageNet-C and CIFAR-10-C, five severities each, batched.

Source: Hendrycks and Dietterich 2019, arXiv 1903.12261, and the code that made the published sets. Each operation takes
float images [B, 3, S, S] in [0, 1], its parameters, and numbers that are drawn for each image by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg

from hexa.evaluation.corruptions import blurs, weather
from hexa.evaluation.corruptions.per_image import PerImage
from hexa.runtime.parsing import read_resource
from hexa.runtime.random import Stream

Parameters = Sequence[float]

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
KINDS = tuple(kind for kinds in GROUPS.values() for kind in kinds)
NUM_SEVERITIES = 5
#: Up to this side the parameters are those for 32 pixels (CIFAR-10-C), above it those for 224 (ImageNet-C).
_SMALL = 64


def corrupt(kind: str, images: Tensor, severity: int, streams: Sequence[Stream]) -> Tensor:
    """The images [B, 3, S, S] in [0, 1] with a corruption of severity 1 … 5, rounded down to 8 bits as published.

    Parameters are the published ones for images of 32 or of 224 pixels; lengths in pixels follow the side of others,
    but are not shortened below those for 32, where they would come to less than a pixel. streams: of each image.
    """
    channels, height, width = images.shape[1:]
    if (channels, height) != (3, width):
        found = f"{channels} channels of {height}×{width} pixels"
        raise ValueError(f"corruptions are made for square RGB images, not {found}")
    side = 32 if height <= _SMALL else 224
    scale = max(1.0, height / 32) if side == 32 else height / 224
    draws = PerImage([stream.child(kind, severity) for stream in streams], images.device)
    made = _MAKE[kind](images.contiguous(), _SEVERITIES[kind][side][severity - 1], scale, draws)
    # what is a grey level but for rounding stays one
    return (made.clamp(0, 1) * 255 + 1e-3).floor().div_(255)


# -- noise ------------------------------------------------------------------------------------------------------------


def _impulse_noise(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    """A share p of the values, each channel by itself, becomes 0 or 1."""
    drawn = draws.uniform(*x.shape[1:])
    return torch.where(drawn < p[0] / 2, 0.0, torch.where(drawn >= 1 - p[0] / 2, 1.0, x))


# -- weather ----------------------------------------------------------------------------------------------------------


def _brightness(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    """HSV value + p, clipped; hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    target = (value + p[0]).clamp(max=1)
    return torch.where(value > 0, x * (target / value.clamp(min=1e-12)), target)


# -- digital ----------------------------------------------------------------------------------------------------------


def _contrast(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    """Towards the mean of each channel."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * p[0] + mean


def _pixelate(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    """To a share p of the side and back, each pixel the mean of those whose centres it covers, as Pillow's BOX."""
    size = x.shape[-1]
    down = _box(size, int(size * p[0])).to(x)
    up = _box(int(size * p[0]), size).to(x)
    return up @ (down @ x @ down.T * 255).round().div(255) @ up.T


def _box(size: int, count: int) -> Tensor:
    """[count, size]: weights of the pixels of an axis in those of the axis resized."""
    step = size / count
    reach = max(step, 1.0) / 2
    centres = (torch.arange(count, dtype=torch.float64) + 0.5) * step
    distance = torch.arange(size, dtype=torch.float64) + 0.5 - centres[:, None]
    weights = ((distance > -reach) & (distance <= reach)).double()
    return weights / weights.sum(1, keepdim=True)


def _jpeg_compression(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    pixels = (x * 255).round().to(torch.uint8).cpu()
    return torch.stack([decode_jpeg(encode_jpeg(image, int(p[0]))) for image in pixels]).to(x) / 255


_MAKE: dict[str, Callable[[Tensor, Parameters, float, PerImage], Tensor]] = {
    "gaussian_noise": lambda x, p, scale, draws: x + p[0] * draws.normal(*x.shape[1:]),
    "shot_noise": lambda x, p, scale, draws: draws.poisson(x * p[0]) / p[0],
    "impulse_noise": _impulse_noise,
    "defocus_blur": lambda x, p, scale, draws: blurs.defocus(x, scale * p[0], p[1]),
    "glass_blur": lambda x, p, scale, draws: blurs.glass(
        x, scale * p[0], scale * p[1], int(p[2]), draws
    ),
    "motion_blur": lambda x, p, scale, draws: blurs.motion(
        x, scale * p[0], scale * p[1], draws.uniform(low=-45, high=45)
    ),
    "zoom_blur": lambda x, p, scale, draws: blurs.zoom_blur(x, *p),
    "snow": weather.snow,
    "frost": lambda x, p, scale, draws: weather.frost(x, p[0], p[1], draws),
    "fog": lambda x, p, scale, draws: weather.fog(x, p[0], p[1], draws),
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": lambda x, p, scale, draws: blurs.elastic(
        x, scale * p[0], scale * p[1], scale * p[2], draws
    ),
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
#: {kind: {side: parameters of each severity}}
_SEVERITIES: dict[str, dict[int, list[Parameters]]] = read_resource(
    "hexa.evaluation.corruptions", "severities.yaml"
)
