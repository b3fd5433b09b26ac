"""The corruptions against the operations they were published with: SciPy's, Pillow's, and loops over pixels."""

from __future__ import annotations

import colorsys
import io
import math
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch import Tensor

from hexa.evaluation.corruptions import blurs, digital, weather
from hexa.evaluation.corruptions.kinds import KINDS, corrupt
from hexa.evaluation.corruptions.per_image import PerImage
from hexa.runtime.random import Stream

Array = NDArray[np.float64]


def pictures(count: int = 2, size: int = 32) -> Tensor:
    """Return smooth images with values that are multiples of 1/255."""
    rough = torch.rand(count, 3, size // 4, size // 4, generator=torch.Generator().manual_seed(0))
    return (
        torch.nn.functional.interpolate(rough, size, mode="bicubic").clamp(0, 1) * 255
    ).round() / 255


def streams(count: int = 2) -> list[Stream]:
    return [Stream(5).child(number) for number in range(count)]


def array(image: Tensor) -> Array:
    return image.permute(1, 2, 0).double().numpy()


def levels(images: Tensor, expected: list[Array]) -> float:
    """Return the largest difference in units of 1/255."""
    return float(
        255
        * (images.double() - torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2)).abs().max()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_corruption_range_seed_severity(kind: str) -> None:
    """Each is valid, seeded per image, and grows with severity."""
    for size in (16, 32, 72):
        images = pictures(4, size)
        made = [corrupt(kind, images, severity, streams(4)) for severity in (1, 3, 5)]
        assert all(float(one.min()) >= 0 and float(one.max()) <= 1 for one in made)
        assert all(torch.equal((one * 255).round() / 255, one) for one in made)
        alone = corrupt(kind, images[2:3], 3, streams(4)[2:3])
        expected = made[1][2:3]
        torch.testing.assert_close(alone, expected, atol=1.01 / 255, rtol=0)
        # the published displacements of elastic_transform are not in order
        if kind != "elastic_transform" and size == 32:
            moved = [float((one - images).abs().mean()) for one in made]
            assert moved[0] < moved[2], moved


@pytest.mark.parametrize(
    ("sigma", "border", "truncate"),
    [
        (0.7, "nearest", 4),
        (1.9, "reflect", 3),
        (21, "reflect", 3),
    ],
)
def test_scipy_smoothing(
    sigma: float, border: Literal["nearest", "reflect"], truncate: float
) -> None:
    images = pictures()
    expected = [
        ndimage.gaussian_filter(array(x), (sigma, sigma, 0), mode=border, truncate=truncate)
        for x in images
    ]
    found = levels(blurs.smoothed(images, sigma, border, truncate), expected)
    assert found < 1e-3


@pytest.mark.parametrize(
    ("radius", "alias"),
    [
        (1.5, 0.1),
        (3, 0.5),
        (8, 0.5),
        (10, 0.5),
    ],
)
def test_defocus_kernel(radius: float, alias: float) -> None:
    """Defocus is a softened disk."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    grid = np.arange(-reach, reach + 1)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(float)
    soft = ndimage.gaussian_filter(
        disk / disk.sum(), alias, mode="mirror", radius=1 if radius <= 8 else 2
    )
    blurred = [
        [ndimage.correlate(x, soft, mode="mirror") for x in one.double().numpy()]
        for one in pictures()
    ]
    found = levels(
        blurs.defocus_blur(pictures(), PerImage([]), radius, alias),
        [np.stack(one, -1) for one in blurred],
    )
    assert found < 1e-3


def test_glass_blur_loop() -> None:
    """Glass blur copies pixel after pixel."""
    images = pictures(size=12)
    sigma = 0.7
    reach = 2
    times = 2
    moves = PerImage(streams()).integers(-reach, reach, times, 12, 12, 2).numpy()
    expected = []
    for image, own in zip(images, moves, strict=True):
        x = (
            np.floor(
                ndimage.gaussian_filter(array(image), (sigma, sigma, 0), mode="nearest") * 255
                + 1e-3
            )
            / 255
        )
        for again in range(times):
            for row in range(12 - reach, reach, -1):
                for column in range(12 - reach, reach, -1):
                    dx, dy = own[again, row, column]
                    x[row, column] = x[row + dy, column + dx]
        expected.append(ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest"))
    found = levels(blurs.glass_blur(images, PerImage(streams()), sigma, reach, times), expected)
    assert found < 1e-3


def test_motion_blur_line() -> None:
    images = pictures(size=16)
    radius = 4
    sigma = 2.0
    degrees = torch.tensor([31.0, -100.0])
    expected = []
    for image, angle in zip(images, np.deg2rad(degrees.double().numpy()), strict=True):
        out = np.zeros((16, 16, 3))
        total = 0.0
        for tap in range(2 * radius + 1):
            weight = math.exp(-(tap**2) / (2 * sigma**2))
            total += weight
            down = math.ceil(tap * math.sin(angle) - 0.5)
            right = math.ceil(tap * math.cos(angle) - 0.5)
            for row in range(16):
                for column in range(16):
                    at = min(max(row + down, 0), 15), min(max(column + right, 0), 15)
                    out[row, column] += weight * array(image)[at]
        expected.append(out / total)
    found = levels(blurs.line_blur(images, radius, sigma, degrees), expected)
    assert found < 1e-3


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.25, 2.5])
def test_scipy_zoom(factor: float) -> None:
    part = math.ceil(32 / factor)
    top = (32 - part) // 2
    expected = []
    for image in pictures():
        larger = ndimage.zoom(
            array(image)[top : top + part, top : top + part], (factor, factor, 1), order=1
        )
        trim = (larger.shape[0] - 32) // 2
        expected.append(larger[trim : trim + 32, trim : trim + 32])
    assert levels(blurs.zoomed(pictures(), factor), expected) < 1e-2


def test_elastic_transform_samples() -> None:
    """An elastic transform samples where SciPy does."""
    images = pictures()
    alpha = 3.0
    sigma = 2.0
    affine = 2.0
    drawn = PerImage(streams())
    moves = drawn.uniform(3, 2, low=-affine, high=affine).numpy()
    noise = [drawn.uniform(32, 32, low=-1, high=1).numpy() for _ in range(2)]
    y, x = np.meshgrid(np.arange(32.0), np.arange(32.0), indexing="ij")
    expected = []
    for number, image in enumerate(array(one) for one in images):
        points = np.array(
            [
                [26.0, 26],
                [26, 6],
                [6, 6],
            ]
        )
        forth = np.linalg.lstsq(np.c_[points, np.ones(3)], points + moves[number], rcond=None)[
            0
        ]  # [3, 2]
        back = np.linalg.inv(np.c_[forth, [0, 0, 1]])[:, :2]
        from_x, from_y = (back[0, i] * x + back[1, i] * y + back[2, i] for i in range(2))
        mapped = [
            ndimage.map_coordinates(image[..., c], [from_y, from_x], order=1, mode="mirror")
            for c in range(3)
        ]
        dx, dy = (
            alpha * ndimage.gaussian_filter(one[number], sigma, mode="reflect", truncate=3)
            for one in noise
        )
        out = [
            ndimage.map_coordinates(one, [y + dy, x + dx], order=1, mode="reflect")
            for one in mapped
        ]
        expected.append(np.stack(out, -1))
    found = levels(
        digital.elastic_transform(images, PerImage(streams()), alpha, sigma, affine), expected
    )
    assert found < 0.05


def test_brightness_value() -> None:
    """Brightness moves the value (of HSV) alone."""
    images = pictures(1, 8)
    images[0, :, 0, 0] = 0
    expected = np.empty((8, 8, 3))
    for row, column in np.ndindex(8, 8):
        hue, saturation, value = colorsys.rgb_to_hsv(*array(images[0])[row, column])
        expected[row, column] = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.15, 1))
    found = levels(corrupt("brightness", images, 3, streams(1)), [expected])
    assert found <= 1


@pytest.mark.parametrize("size", [32, 224])
def test_pillow_pixelate_and_jpeg(size: int) -> None:
    images = pictures(1, size)
    picture = Image.fromarray((array(images[0]) * 255).round().astype(np.uint8))
    side, quality = (27, 58) if size == 32 else (89, 15)
    small = picture.resize((side, side), Image.Resampling.BOX).resize(
        (size, size), Image.Resampling.BOX
    )
    found = levels(corrupt("pixelate", images, 3, streams(1)), [np.asarray(small) / 255])
    assert found < 1.01
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    assert (
        levels(
            corrupt("jpeg_compression", images, 3, streams(1)), [np.asarray(Image.open(file)) / 255]
        )
        < 2.01
    )


@pytest.mark.parametrize(
    ("size", "deviation", "photons", "share"), [(32, 0.08, 100, 0.03), (80, 0.18, 12, 0.09)]
)
def test_noise_moments(size: int, deviation: float, photons: float, share: float) -> None:
    images = torch.full((24, 3, size, size), 0.5)
    gaussian, shot, impulse = (corrupt(kind, images, 3, streams(24)) for kind in KINDS[:3])
    found = float(gaussian.std())
    assert found == pytest.approx(deviation, rel=0.02)
    assert float(shot.std()) == pytest.approx(math.sqrt(0.5 / photons), rel=0.02)
    assert float(shot.mean()) == pytest.approx(0.5, abs=0.005)
    salt = float((impulse == 1).float().mean())
    pepper = float((impulse == 0).float().mean())
    assert salt == pytest.approx(share / 2, rel=0.1)
    assert pepper == pytest.approx(share / 2, rel=0.1)


def test_plasma_diamond_square() -> None:
    """Point by point on a torus: centres of squares, then of diamonds."""
    side = 8
    decay = 2.0
    noise = PerImage(streams(1)).uniform(side, side, low=-1, high=1)[0].numpy()
    made = np.zeros((side, side))
    step = side
    wibble = 100.0
    while step > 1:
        half = step // 2
        for parity in (0, 1):
            for row in range(0, side, half):
                for column in range(0, side, half):
                    odd = (row // half) % 2 + (column // half) % 2
                    if odd == 2 and parity == 0:
                        around = [
                            (-half, -half),
                            (-half, half),
                            (half, -half),
                            (half, half),
                        ]
                    elif odd == 1 and parity == 1:
                        around = [
                            (-half, 0),
                            (half, 0),
                            (0, -half),
                            (0, half),
                        ]
                    else:
                        continue
                    total = sum(made[(row + dy) % side, (column + dx) % side] for dy, dx in around)
                    made[row, column] = total / 4 + wibble**2 * noise[row, column]
        step = half
        wibble = wibble / decay
    expected = (made - made.min()) / (made.max() - made.min())
    found = weather.plasma(side, decay, PerImage(streams(1)))[0, 0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
