"""RandAugment's operations against timm's on PIL images, and the choice of images and
operations."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment
from torch import Tensor

from hexa.ops import randaugment
from hexa.ops.randaugment import OPERATIONS

COUNT = 40
SIZE = 37
# Our names and timm's, and how far values may differ, in levels: one is PIL's rounding down, two in the blends what it
# also rounds between (the image blended with).
ORACLE = {
    "autocontrast": ("AutoContrast", 1.0),
    "equalize": ("Equalize", 0.0),
    "invert": ("Invert", 0.0),
    "posterize": ("Posterize", 0.0),
    "solarize": ("Solarize", 0.0),
    "solarize-add": ("SolarizeAdd", 0.0),
    "colour": ("Color", 2.0),
    "contrast": ("Contrast", 2.0),
    "brightness": ("Brightness", 1.0),
    "sharpness": ("Sharpness", 2.0),
    "rotate": ("Rotate", 1.0),
    "shear-x": ("ShearX", 1.0),
    "shear-y": ("ShearY", 1.0),
    "translate-x": ("TranslateXRel", 1.0),
    "translate-y": ("TranslateYRel", 1.0),
}


def _bytes(size: int = SIZE) -> Tensor:
    """Random colours, and the hard cases: one level, two, black and white, few levels, low contrast, a few outliers."""
    images = torch.randint(
        0, 256, (COUNT, 3, size, size), generator=torch.Generator().manual_seed(0)
    )
    images[0], images[1], images[2] = 77, 0, 255
    images[3] = images[3] // 128 * 255
    images[4] = images[4] // 128 + 100
    images[5] = images[5] // 64 * 60
    images[6] = images[6] // 16 + 90
    images[7, :, 1:] = 12
    images[8, 1] = 200
    images[9] = torch.arange(size) * 6
    return images.to(torch.uint8)


@pytest.mark.parametrize("size", [SIZE, 9])
@pytest.mark.parametrize("name", OPERATIONS)
def test_timm_operation_magnitudes(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation at a magnitude equals timm's."""
    images = _bytes(size)
    generator = torch.Generator().manual_seed(1)
    levels = 10 * torch.rand(COUNT, generator=generator)
    levels[:8] = torch.tensor([0.0, 10.0, 10.0, 2.5, 5.0, 0.0, 10.0, 7.5])
    levels = levels.roll(3)
    signs = 2.0 * torch.randint(2, (COUNT,), generator=generator) - 1
    floats = images / 255
    before = floats.clone()
    made = OPERATIONS[name](floats, signs * levels / 10)
    assert made.shape == floats.shape
    assert made.min() >= 0
    assert made.max() <= 1
    assert torch.equal(floats, before)
    other, tolerance = ORACLE[name]
    level_of = auto_augment.LEVEL_TO_ARG[other]
    operation = auto_augment.NAME_TO_OP[other]
    for image, level, sign, ours in zip(images, levels.tolist(), signs.tolist(), made, strict=True):
        monkeypatch.setattr(random, "random", lambda sign=sign: 0.5 - 0.1 * sign)
        arguments = level_of(level, {}) if level_of else ()
        if other == "Posterize" and arguments == (0,):  # PIL no longer takes it
            assert (ours == 0).all()
            continue
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        how = {"fillcolor": (128, 128, 128), "resample": Image.Resampling.BILINEAR}
        seen = operation(picture, *arguments, **how)
        expected = torch.from_numpy(np.array(seen)).permute(2, 0, 1).float()
        torch.testing.assert_close(255 * ours, expected, atol=tolerance + 1e-3, rtol=0)


def test_values_between_levels() -> None:
    """Values between levels count as the nearest."""
    images = _bytes() / 255
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(4)) - 0.5
    between = (images + 0.9 / 255 * noise).clamp(0, 1)
    bits = torch.arange(COUNT) % 9
    threshold = torch.full((COUNT,), 100.0)
    assert torch.equal(randaugment.posterize(between, bits), randaugment.posterize(images, bits))
    textured = slice(9, None)  # those that are not flat, of which the levels are kept
    assert torch.equal(
        randaugment.equalize(between)[textured], randaugment.equalize(images)[textured]
    )
    torch.testing.assert_close(
        randaugment.solarize(between, threshold),
        randaugment.solarize(images, threshold),
        atol=0.5 / 255,
        rtol=0,
    )


def test_operation_draws() -> None:
    """The choice of views, operations, directions and strengths."""
    count = 30000
    plan = randaugment.plan(
        torch.rand(count, 4, generator=torch.Generator().manual_seed(0)), 5.0, 0.5
    )
    assert abs(len(plan.rows) / count - 0.5) < 0.01
    assert len(plan.rows.unique()) == len(plan.rows)
    assert bool((plan.operation.diff() >= 0).all())
    assert (
        float(((plan.operation.bincount(minlength=15) / len(plan.rows)) - 1 / 15).abs().max())
        < 0.006
    )
    turns = plan.signed[plan.operation == list(OPERATIONS).index("translate-x")]
    assert abs(float((turns < 0).float().mean()) - 0.5) < 0.05
    assert abs(10 * float(turns.abs().mean()) - 5) < 0.06
    assert abs(10 * float(turns.abs().std()) - 0.5) < 0.05
