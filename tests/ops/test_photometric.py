"""Batched colour operations against torchvision, image by image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

from hexa.ops.photometric import (
    ORDERS,
    Jitter,
    blur_radius,
    color_jitter,
    gaussian_blur,
    grayscale,
    luma,
    solarize,
    stain_jitter,
)

COUNT = 48
#: Each order twice, sorted by the place of the hue, as `color_jitter` takes them.
BY_HUE_TURN = torch.tensor(sorted([*range(24)] * 2, key=lambda order: ORDERS[order].index(3)))


@pytest.fixture
def images() -> Tensor:
    """Random colours, and the hard cases of hue: grey, two equal channels, black, white, pure colours."""
    images = torch.rand(COUNT, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    images[0] = images[0, :1]
    images[1, 1] = images[1, 0]
    images[2, 2] = images[2, 1]
    images[3, 2] = images[3, 0]
    images[4] = images[4].round()
    images[5], images[6] = 0, 1
    return images


def test_grayscale_and_solarize(images: Tensor) -> None:
    torch.testing.assert_close(
        grayscale(images), reference.rgb_to_grayscale(images, 3), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        luma(images), reference.rgb_to_grayscale(images, 1), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(solarize(images, 0.3), reference.solarize(images, 0.3))


def test_colour_jitter_orders(images: Tensor) -> None:
    """Every order of the jitter equals torchvision, image by image."""
    generator = torch.Generator().manual_seed(1)
    factor = 2 * torch.rand(COUNT, generator=generator)
    factor[:3] = torch.tensor([0.0, 1.0, 2.0])
    shift = torch.rand(COUNT, generator=generator) - 0.5
    shift[:4] = torch.tensor([-0.5, 0.5, 0.0, 1 / 6])
    order = BY_HUE_TURN
    jitter = Jitter(factor, factor.roll(5), factor.roll(11), shift, order)
    before = images.clone()
    made = color_jitter(images, jitter)
    operations = [
        (reference.adjust_brightness, jitter.brightness),
        (reference.adjust_contrast, jitter.contrast),
        (reference.adjust_saturation, jitter.saturation),
        (reference.adjust_hue, jitter.hue),
    ]
    for number, image in enumerate(images):
        expected = image
        for which in ORDERS[int(order[number])]:
            operation, values = operations[which]
            expected = operation(expected, float(values[number]))
        torch.testing.assert_close(made[number], expected, atol=2e-5, rtol=0)
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("height", "width", "radius"),
    [
        (12, 12, 6),
        (12, 7, 6),
        (40, 31, 3),
        (9, 9, 8),
        (96, 99, 6),
    ],
)
def test_gaussian_blur_torchvision(height: int, width: int, radius: int) -> None:
    generator = torch.Generator().manual_seed(4)
    images = torch.rand(10, 3, height, width, generator=generator)
    sigma = 0.1 + 1.9 * torch.rand(10, generator=generator)
    kernel = [2 * radius + 1] * 2
    made = gaussian_blur(images, sigma, radius)
    for number, image in enumerate(images):
        expected = reference.gaussian_blur(image, kernel, [float(sigma[number])] * 2)
        torch.testing.assert_close(made[number], expected, atol=1e-5, rtol=0)
    grey = gaussian_blur(images[:, :1], sigma, radius)
    alone = gaussian_blur(images[4:5, :1], sigma[4:5], radius)
    assert torch.equal(grey[4:5], alone)


def test_blur_radius() -> None:
    """The radius covers three sigma and fits the image."""
    assert blur_radius(2.0, 224) == 6
    assert blur_radius(0.1, 224) == 1
    assert blur_radius(2.0, 4) == 3


def test_eosin_stain_jitter() -> None:
    """A section of pure eosin: e^(−s·M) becomes e^(−(2s + ½)·M) in its own stain and nothing else happens."""
    eosin = torch.tensor([0.07, 0.99, 0.11])
    section = torch.exp(-0.3 * eosin).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    factor = torch.tensor([[1.0, 2.0, 1.0]])
    shift = torch.tensor([[0.0, 0.5, 0.0]])
    made = stain_jitter(section, factor, shift)
    expected = torch.exp(-1.1 * eosin).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_colourless_jitter(channels: int) -> None:
    """Contrast uses the mean of all channels; clipping in between depends on the order."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(COUNT, channels, 8, 8, generator=generator)
    brightness = 0.4 + 1.4 * torch.rand(COUNT, generator=generator)
    contrast = 0.4 + 1.4 * torch.rand(COUNT, generator=generator)
    orders = BY_HUE_TURN
    saturation = torch.ones(COUNT)
    hue = torch.zeros(COUNT)
    jitter = Jitter(brightness, contrast, saturation, hue, orders)
    made = color_jitter(images, jitter)
    for number, image in enumerate(images):
        expected = image
        for operation in ORDERS[int(orders[number])]:
            if operation == 0:
                expected = (expected * brightness[number]).clamp(0, 1)
            elif operation == 1:
                factor = contrast[number]
                mean = expected.mean()
                expected = (factor * expected + (1 - factor) * mean).clamp(0, 1)
        torch.testing.assert_close(made[number], expected, atol=1e-5, rtol=0)
