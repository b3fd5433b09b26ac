"""Images in their own aspect: the whole image, sides that the network takes, and strips within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from hexa.data import open_source
from hexa.data.loading.loaders import evaluation_batches
from hexa.data.views.evaluation import OwnAspect
from tests.evaluation.given import noise_images


@pytest.mark.parametrize(
    ("size", "sides", "expected"),
    [
        (224, (480, 640), (224, 288)),  # 298.7 is nearer to 9 · 32 than to 10 · 32
        (224, (224, 240), (224, 256)),  # 7.5 rounds to 8
        (224, (1, 5000), (224, 16 * 224)),
        (224, (10**6, 3), (16 * 224, 224)),
        (48, (10, 30), (64, 192)),
    ],
)
def test_sides_are_multiples_of_the_stride(
    size: int, sides: tuple[int, int], expected: tuple[int, int]
) -> None:
    """And one stride at least."""
    assert OwnAspect(size, 32).sides(*sides) == expected


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_nothing_is_cut(interpolation: str) -> None:
    image = torch.randint(0, 256, (3, 60, 90), dtype=torch.uint8)
    found = OwnAspect(32, 8, interpolation)(image)
    expected = functional.interpolate(image[None], (32, 48), mode=interpolation, antialias=True)[0]
    assert torch.equal(found, expected)
    assert torch.equal(OwnAspect(32, 8, interpolation)(image[None].repeat(2, 1, 1, 1))[1], expected)


def test_of_a_strip_the_middle_is_seen() -> None:
    strip = torch.zeros(3, 2, 400, dtype=torch.uint8)
    strip[..., 184:216] = 255  # the middle 16 · 2 pixels
    assert OwnAspect(8, 8)(strip).shape == (3, 8, 128)
    assert OwnAspect(8, 8)(strip).min() == 255
    assert torch.equal(OwnAspect(8, 8)(strip.mT), OwnAspect(8, 8)(strip).mT)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_come_by_shape_each_once(tmp_path: Path, num_workers: int) -> None:
    sizes = [(20, 30), (30, 20), (20, 30), (40, 40), (20, 31)] * 14
    data = noise_images(tmp_path, {f"{number:02d}.png": size for number, size in enumerate(sizes)})
    (tmp_path / "07.png").write_bytes(b"broken")
    problems: dict[int, str] = {}
    transform, source, seen = OwnAspect(16, 8), open_source(data), []
    for images, _, index in evaluation_batches(
        source, transform, 256, num_workers=num_workers, problems=problems
    ):
        assert len(images) == len(index) <= 256 // 16
        for image, position in zip(images, index.tolist(), strict=True):
            assert torch.equal(
                (image * 255).round().to(torch.uint8), transform(source.decode(position))
            )
        seen += index.tolist()
    assert sorted(seen) == [number for number in range(70) if number != 7]
    assert list(problems) == [7]


def test_pixels_of_16_bits_become_floats() -> None:
    found = OwnAspect(16, 8)(torch.full((4, 20, 30), 13107, dtype=torch.int32).to(torch.uint16))
    assert (found.shape, found.dtype) == ((4, 16, 24), torch.float32)
    assert torch.allclose(found, torch.tensor(0.2))
