"""Views: the pipeline against one image at a time, and its independence of process and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.views import making as made_by
from hexa.data.views.config import Crops, ViewsConfig
from hexa.data.views.making import Views
from hexa.ops import randaugment
from hexa.ops.photometric import ORDERS
from hexa.runtime.random import Stream
from tests.torture.harness import forked


def _views(**fields: Any) -> Views:
    return Views(ViewsConfig.model_validate({"size": 24, **fields}))


def _images(count: int, height: int = 32, width: int = 32) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(0)
    ).to(torch.uint8)


MULTI = {
    "recipe": "swav",
    "scale": (0.3, 1.0),
    "extra_crops": [
        {"count": 3, "size": 16, "scale": (0.05, 0.3)},
        {"count": 1, "size": 20, "scale": (0.1, 0.1)},
    ],
}


def _one_view(image: Tensor, number: Tensor, config: ViewsConfig, group: Crops) -> Tensor:
    """The published order for a single image, one torchvision call after the other: crop, colours, and then flip.

    RandAugment comes after the flip.
    """
    box, _ = Views(config).boxes(number[None], *image.shape[1:], group)
    top, left, high, wide = (int(value) for value in box)
    view = reference.resized_crop(
        image.float() / 255, top, left, high, wide, [group.size, group.size], antialias=True
    )
    column = {
        name: float(number[getattr(made_by, f"_{name.upper()}")]) for name in ("flip", *COLUMNS)
    }

    def factor(name: str) -> float:
        strength = getattr(config, name)
        low = max(0.0, 1 - strength)
        return low + (1 + strength - low) * column[name]

    def jitter(view: Tensor) -> Tensor:
        parts = [
            lambda v: reference.adjust_brightness(v, factor("brightness")),
            lambda v: reference.adjust_contrast(v, factor("contrast")),
            lambda v: reference.adjust_saturation(v, factor("saturation")),
            lambda v: reference.adjust_hue(v, config.hue * (2 * column["hue"] - 1)),
        ]
        for which in ORDERS[int(column["order"] * 24)]:
            view = parts[which](view)
        return view

    flip = column["flip"] < config.flip_probability
    turned = bool(config.vertical_flip_probability or config.quarter_turn_probability)
    if flip and (config.randaugment_ops or turned):
        view = reference.hflip(view)
        flip = False
    if turned and number[made_by._UPSIDE_DOWN] < config.vertical_flip_probability:
        view = reference.vflip(view)
    if turned and number[made_by._TURNED] < config.quarter_turn_probability:
        view = torch.rot90(view, 1 + int(3 * number[made_by._QUARTERS]), (1, 2))
    if config.stain:
        a, b = config.stain * (2 * number[made_by._STAINS].double().numpy().reshape(2, 3) - 1)
        stains = (
            -np.log(view.double().numpy().clip(1e-6)).reshape(3, -1).T
            @ np.linalg.inv(RGB_FROM_HED)
            * (1 + a)
            + b
        )
        view = torch.from_numpy(
            np.exp(-stains @ RGB_FROM_HED).clip(0, 1).T.reshape(view.shape)
        ).float()
    sigma = config.blur_sigma[0] + (config.blur_sigma[1] - config.blur_sigma[0]) * column["sigma"]
    operations = {
        "jitter": jitter,
        "grayscale": lambda v: reference.rgb_to_grayscale(v, 3),
        "blur": lambda v: reference.gaussian_blur(v, [13, 13], [sigma, sigma]),
        "solarize": lambda v: reference.solarize(v, 0.5),
    }
    for name in config.order:
        if name == "randaugment":
            view = _by_randaugment(view, number, config)
        elif column[name] < getattr(config, f"{name}_probability"):
            view = operations[name](view)
    return reference.hflip(view) if flip else view


#: As scikit-image has it.
RGB_FROM_HED = np.array(
    [
        [0.65, 0.70, 0.29],
        [0.07, 0.99, 0.11],
        [0.27, 0.57, 0.78],
    ]
)


def _by_randaugment(view: Tensor, number: Tensor, config: ViewsConfig) -> Tensor:
    """Apply RandAugment to a single view [3, S, S]."""
    columns = config.randaugment_ops * randaugment.UNIFORMS_PER_OPERATION
    for uniforms in number[-columns:].view(config.randaugment_ops, -1):
        if uniforms[0] < randaugment.PROBABILITY:
            plan = randaugment.plan(
                uniforms[None], config.randaugment_magnitude, config.randaugment_magnitude_std
            )
            view = randaugment.apply(view[None], plan)[0]
    return view


COLUMNS = [
    "jitter",
    "grayscale",
    "blur",
    "solarize",
    "sigma",
    "order",
    "brightness",
    "contrast",
    "saturation",
    "hue",
]


RANDOM = {"recipe": "infomin", "extra_crops": [{"count": 2, "size": 16, "scale": (0.1, 0.3)}]}
KINDS = pytest.mark.parametrize(
    "fields", [{"recipe": "moco-v2"}, MULTI, RANDOM], ids=["plain", "multi", "random"]
)


def _agree(views: Views, made: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    """Compare views; with RandAugment, exclude the few values between two levels, where its
    operations jump."""
    if views.config.randaugment_ops:
        assert made.shape == expected.shape
        found = float(((made - expected).abs() < 5e-5).float().mean())
        assert found > 0.99
    else:
        torch.testing.assert_close(made, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"recipe": "moco-v2"},
        {"recipe": "moco-v1"},
        {"recipe": "crop-flip"},
        {"recipe": "moco-v2", "solarize_probability": 0.3, "brightness": 1.5, "num_views": 3},
        MULTI,
        {"vertical_flip_probability": 0.3, "quarter_turn_probability": 0.75, "stain": 0.2},
        {"magnification": (0.7, 3.0), "ratio": (0.8, 1.25), "quarter_turn_probability": 1.0},
        RANDOM,
        {**RANDOM, "randaugment_ops": 4, "randaugment_magnitude": 6},
    ],
)
def test_view_pipeline_loop(fields: dict[str, Any]) -> None:
    """Every view equals the published pipeline of its image."""
    views = _views(**fields)
    images = _images(16)
    stream = Stream(3, ("step", 7))
    crops = views(images, stream)
    numbers = views.draw(stream, slice(0, 16))
    groups = [group for group in views.config.groups for _ in range(group.count)]
    assert len(crops) == len(numbers) == views.config.total_views
    for crop, number, group in zip(crops, numbers, groups, strict=True):
        assert crop.dtype == torch.float32
        assert crop.shape == (16, 3, group.size, group.size)
        assert crop.min() >= 0
        assert crop.max() <= 1
        expected = [_one_view(images[row], number[row], views.config, group) for row in range(16)]
        _agree(views, crop, torch.stack(expected), 5e-5)


@KINDS
def test_view_stream_and_row(fields: dict[str, Any]) -> None:
    """A view depends on stream and row only, so a process makes its rows of the global batch."""
    views = _views(**fields)
    images = _images(48)
    whole = views(images, Stream(5))
    numbers = views.draw(Stream(5), slice(0, 600))
    assert all(map(torch.equal, views(images, Stream(5)), whole))
    assert not any(map(torch.equal, views(images, Stream(6)), whole))
    # no two views share their numbers
    assert len(numbers.flatten().unique()) > 0.99 * numbers.numel()
    for rows in (slice(255, 257), slice(256, 512), slice(500, 600), slice(0), slice(256, 256)):
        assert torch.equal(views.draw(Stream(5), rows), numbers[:, rows])
    for rows in (slice(0, 16), slice(16, 48), slice(47, 48)):
        for left, right in zip(views(images[rows], Stream(5), rows), whole, strict=True):
            _agree(views, left, right[rows])


def test_fixed_magnification_crop() -> None:
    """A crop of fixed magnification has its pixels whatever the image."""
    views = _views(
        magnification=(0.5, 2.0), ratio=(1.0, 1.0), extra_crops=[{"count": 1, "size": 12}]
    )
    numbers = views.draw(Stream(0), slice(0, 4000))
    for group, share in views.by_group(numbers):
        for height, width in ((1000, 700), (100, 300)):
            boxes, _ = views.boxes(share[0], height, width, group)
            magnification = group.size / boxes.height.double()
            assert torch.equal(boxes.height, boxes.width)
            assert 0.48 < float(magnification.min()) < float(magnification.max()) < 2.1
            assert abs(float(magnification.log().mean())) < 0.03  # log-uniform around 1
            assert int((boxes.left + boxes.width).max()) == width
            assert int(boxes.top.min()) == 0
    # 24 pixels of view: an image of 30 pixels leaves the magnifications from 0.8 on, one of 10 is taken whole
    small, _ = views.boxes(numbers[0], 30, 90, views.groups[0])
    assert 24 / 30 <= float((24 / small.height.double()).min()) < 0.82
    whole, _ = views.boxes(numbers[0], 10, 90, views.groups[0])
    assert {*whole.height.tolist(), *whole.width.tolist()} == {10}


@pytest.mark.parametrize(
    ("height", "width", "size", "crop", "mode"),
    [
        (375, 500, 224, 0.875, "bilinear"),
        (400, 300, 64, 0.875, "bilinear"),
        (100, 1000, 64, 0.875, "bilinear"),
        (20, 30, 64, 0.875, "bilinear"),
        (100, 140, 64, 0.95, "bicubic"),
        (100, 140, 64, 1.0, "bilinear"),
    ],
)
def test_pil_resizing(height: int, width: int, size: int, crop: float, mode: str) -> None:
    """Published codes resize with PIL; through floats, one in seven values would differ."""
    image = _images(1, height, width)[0]
    short = round(size / crop)
    high = int(short * height / min(height, width))
    wide = int(short * width / min(height, width))
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
        (wide, high), Image.Resampling[mode.upper()]
    )
    expected = reference.center_crop(
        torch.from_numpy(np.array(picture)).permute(2, 0, 1), [size, size]
    )
    made = EvaluationTransform(size, crop, mode)(image)
    assert made.dtype == torch.uint8
    differ = (made.int() - expected.int()).abs()
    assert differ.max() <= 1
    assert (differ > 0).float().mean() < 0.01


@pytest.mark.parametrize(
    "shape",
    [
        (5000, 1),
        (3, 20000),
        (1, 50_000_000),
    ],
)
def test_strip_resizing_memory(shape: tuple[int, int]) -> None:
    """A strip of pixels takes little memory."""
    found = forked(
        lambda: EvaluationTransform(224)(torch.zeros((3, *shape), dtype=torch.uint8)).shape
    )
    assert found.value == (3, 224, 224)
    assert found.megabytes < 500, "resized whole they take gigabytes"
