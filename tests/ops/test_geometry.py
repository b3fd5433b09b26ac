"""Batched crops against torchvision, image by image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as reference

from hexa.ops.geometry import UNIFORMS_PER_BOX, Boxes, crop_resize, quarter_turned, random_boxes


def _boxes(count: int, height: int, width: int, seed: int = 0) -> Boxes:
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(count, UNIFORMS_PER_BOX, generator=generator)
    return random_boxes(uniforms, height, width)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (32, 32, 32),
        (8, 8, 16),
        (40, 57, 24),
        (5, 3, 11),
        (1, 1, 4),
        (64, 64, 7),
        (33, 32, 1),
        (99, 90, 64),
        (9, 7, 80),
    ],
)
def test_crop_resize_torchvision(height: int, width: int, size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(12, 3, height, width, generator=generator)
    flip = torch.rand(12, generator=generator) < 0.5
    boxes = _boxes(12, height, width)
    made = crop_resize(images, boxes, size, flip)
    for number, image in enumerate(images):
        top, left, high, wide = (int(value[number]) for value in boxes)
        expected = reference.resized_crop(
            image, top, left, high, wide, [size, size], antialias=True
        )
        expected = reference.hflip(expected) if flip[number] else expected
        torch.testing.assert_close(made[number], expected, atol=1e-5, rtol=0)
    grey = crop_resize(images[:, :1], boxes, size, flip)
    one = Boxes(*(value[4:5] for value in boxes))
    grey_alone = crop_resize(images[4:5, :1], one, size, flip[4:5])
    alone = crop_resize(images[4:5], one, size, flip[4:5])
    assert torch.equal(grey[4:5], grey_alone)
    assert torch.equal(made[4:5], alone)


def test_quarter_turns() -> None:
    """All turns of a view are those of torch."""
    images = torch.rand(16, 3, 9, 9)
    flip = (torch.arange(16) % 2).bool()
    upside_down = (torch.arange(16) // 2 % 2).bool()
    quarters = torch.arange(16) // 4
    turns = quarter_turned(flip, upside_down, quarters)
    whole = Boxes(*(torch.full((16,), n) for n in (0, 0, 9, 9)))
    made = crop_resize(images, whole, 9, turns.flip, turns.upside_down)
    for number, image in enumerate(images):
        expected = reference.hflip(image) if flip[number] else image
        expected = reference.vflip(expected) if upside_down[number] else expected
        expected = torch.rot90(expected, int(quarters[number]), (1, 2))
        found = made[number].transpose(1, 2) if turns.transposed[number] else made[number]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (32, 32),
        (60, 200),
        (375, 500),
    ],
)
def test_box_distribution_torchvision(height: int, width: int) -> None:
    """Two-sample Kolmogorov-Smirnov on every number of the box, at a level that a wrong distribution does not pass."""
    count = 2000
    boxes = _boxes(count, height, width, seed=3)
    ours = torch.stack(boxes, 1).double().numpy()
    torch.manual_seed(0)
    blank = torch.empty(3, height, width)
    drawn = []
    for _ in range(count):
        box = RandomResizedCrop.get_params(blank, (0.08, 1.0), (3 / 4, 4 / 3))
        drawn.append(box)
    theirs = np.array(drawn)
    bound = 2.2 * math.sqrt(2 / count)  # p ≈ 1e-4
    for column in range(4):
        assert ks_2samp(ours[:, column], theirs[:, column]).statistic < bound
    our_area = ours[:, 2] * ours[:, 3]
    their_area = theirs[:, 2] * theirs[:, 3]
    assert ks_2samp(our_area, their_area).statistic < bound
    our_aspect = ours[:, 3] / ours[:, 2]
    their_aspect = theirs[:, 3] / theirs[:, 2]
    assert ks_2samp(our_aspect, their_aspect).statistic < bound


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (10, 1000),
        (1000, 10),
        (1, 1),
    ],
)
def test_box_fallback_torchvision(height: int, width: int) -> None:
    """An image into which no try fits gets torchvision's fallback."""
    uniforms = torch.full((1, UNIFORMS_PER_BOX), 0.999)
    boxes = random_boxes(uniforms, height, width, scale=(0.9, 1.0))
    blank = torch.empty(3, height, width)
    expected = RandomResizedCrop.get_params(blank, (0.9, 1.0), (3 / 4, 4 / 3))
    assert tuple(int(value) for value in boxes) == tuple(expected)
