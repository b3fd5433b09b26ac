"""The noise of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), batched.

Images are float [B, 3, S, S] in [0, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from hexa.evaluation.corruptions.per_image import PerImage


def gaussian_noise(
    images: Tensor,
    draws: PerImage,
    deviation: float,
) -> Tensor:
    """Normal noise is added."""
    return images + deviation * draws.normal(*images.shape[1:])


def shot_noise(
    images: Tensor,
    draws: PerImage,
    photons: float,
) -> Tensor:
    """Poisson noise; photons: of a white pixel."""
    return draws.poisson(images * photons) / photons


def impulse_noise(
    images: Tensor,
    draws: PerImage,
    share: float,
) -> Tensor:
    """A share of the values, each channel by itself, becomes 0 or 1."""
    drawn = draws.uniform(*images.shape[1:])
    salted = torch.where(drawn >= 1 - share / 2, 1.0, images)
    return torch.where(drawn < share / 2, 0.0, salted)
