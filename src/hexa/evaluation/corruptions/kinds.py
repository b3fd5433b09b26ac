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
from hexa.runtime.random import Stream

Parameters = tuple[float, ...]

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
    assert (channels, height) == (3, width), "corruptions are made for square RGB images"
    make, small, large = _KINDS[kind]
    scale, table = (max(1.0, height / 32), small) if height <= _SMALL else (height / 224, large)
    draws = PerImage([stream.child(kind, severity) for stream in streams], images.device)
    made = make(images.contiguous(), table[severity - 1], scale, draws)
    # what is a grey level but for rounding stays one
    return (made.clamp(0, 1) * 255 + 1e-3).floor().div_(255)


# -- noise ------------------------------------------------------------------------------------------------------------


def _gaussian_noise(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    return x + p[0] * draws.normal(*x.shape[1:])


def _shot_noise(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    return draws.poisson(x * p[0]) / p[0]


def _impulse_noise(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    """A share p of the values, each channel by itself, becomes 0 or 1."""
    drawn = draws.uniform(*x.shape[1:])
    return torch.where(drawn < p[0] / 2, 0.0, torch.where(drawn >= 1 - p[0] / 2, 1.0, x))


# -- blur -------------------------------------------------------------------------------------------------------------


def _pixels(length: float) -> int:
    return max(1, round(length))


# -- weather ----------------------------------------------------------------------------------------------------------


def _snow(x: Tensor, p: Parameters, scale: float, draws: PerImage) -> Tensor:
    mean, deviation, zoom, threshold, radius, sigma, kept = p
    return weather.snow(x, mean, deviation, zoom, threshold, _pixels(scale * radius), scale * sigma, kept, draws)


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
    small = (down @ x @ down.T * 255).round().div(255)
    return up @ small @ up.T


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


# -- how strong -------------------------------------------------------------------------------------------------------

_Make = Callable[[Tensor, Parameters, float, PerImage], Tensor]


def _one(*values: float) -> tuple[Parameters, ...]:
    return tuple((value,) for value in values)


#: {kind: (operation, parameters of each severity at 32 pixels, at 224 pixels)}
_KINDS: dict[str, tuple[_Make, tuple[Parameters, ...], tuple[Parameters, ...]]] = {
    # standard deviation
    "gaussian_noise": (_gaussian_noise, _one(0.04, 0.06, 0.08, 0.09, 0.10), _one(0.08, 0.12, 0.18, 0.26, 0.38)),
    # photons of a white pixel
    "shot_noise": (_shot_noise, _one(500, 250, 100, 75, 50), _one(60, 25, 12, 5, 3)),
    # share of the values
    "impulse_noise": (_impulse_noise, _one(0.01, 0.02, 0.03, 0.05, 0.07), _one(0.03, 0.06, 0.09, 0.17, 0.27)),
    # radius, softness of the edge
    "defocus_blur": (
        lambda x, p, scale, draws: blurs.defocus(x, scale * p[0], p[1]),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # σ, reach, times
    "glass_blur": (
        lambda x, p, scale, draws: blurs.glass(x, scale * p[0], _pixels(scale * p[1]), int(p[2]), draws),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # radius, σ
    "motion_blur": (
        lambda x, p, scale, draws: blurs.motion(
            x, _pixels(scale * p[0]), scale * p[1], draws.uniform(low=-45, high=45)
        ),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    # largest factor (excluded), step
    "zoom_blur": (
        lambda x, p, scale, draws: blurs.zoom_blur(x, *p),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    # mean and deviation of the noise, zoom, threshold, radius and σ of the blur, share kept
    "snow": (
        _snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # shares of the image and of the frost
    "frost": (
        lambda x, p, scale, draws: weather.frost(x, p[0], p[1], draws),
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    # strength, decay
    "fog": (
        lambda x, p, scale, draws: weather.fog(x, p[0], p[1], draws),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": (_brightness, _one(0.05, 0.1, 0.15, 0.2, 0.3), _one(0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (_contrast, _one(0.75, 0.5, 0.4, 0.3, 0.15), _one(0.4, 0.3, 0.2, 0.1, 0.05)),
    # α, σ, affine, which the published code gives as shares of 32 and of 244
    "elastic_transform": (
        lambda x, p, scale, draws: blurs.elastic(x, scale * p[0], scale * p[1], scale * p[2], draws),
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
        ((488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88)),
    ),
    # share of the side
    "pixelate": (_pixelate, _one(0.95, 0.9, 0.85, 0.75, 0.65), _one(0.6, 0.5, 0.4, 0.3, 0.25)),
    # quality
    "jpeg_compression": (_jpeg_compression, _one(80, 65, 58, 50, 40), _one(25, 18, 15, 10, 7)),
}
