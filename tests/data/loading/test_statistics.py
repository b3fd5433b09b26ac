"""Mean and standard deviation of a source: the numbers, and what is passed over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import ArraySource, open_source
from hexa.data.loading import statistics


def _folder(root: Path, count: int = 7) -> Path:
    root.mkdir()
    for number in range(count):
        generator = np.random.default_rng(number)
        brightest = 40 * (number + 1) % 256
        pixels = generator.integers(0, brightest, (9, 12 + number, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{number}.png")
    return root


def test_statistics_image_weights(tmp_path: Path) -> None:
    """Every image counts alike, whatever its size."""
    root = _folder(tmp_path / "images")
    pixels = [np.asarray(Image.open(path)) / 255 for path in sorted(root.iterdir())]
    mean = np.mean([image.mean((0, 1)) for image in pixels], 0)
    square = np.mean([(image**2).mean((0, 1)) for image in pixels], 0)
    std = np.sqrt(square - mean**2)
    source = open_source(f"folder:{root}")
    found = statistics.measured(source)
    np.testing.assert_allclose(found, (mean, std), rtol=6e-4)
    assert all(value == float(f"{value:.4g}") for value in (*found[0], *found[1]))


def test_statistics_channels_and_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of channels; of many images some are read."""
    images = torch.randint(0, 256, (300, 5, 4, 4), dtype=torch.uint8)
    monkeypatch.setattr(statistics, "_IMAGES", 10)
    mean, std = statistics.measured(ArraySource(images))
    chosen = images[::30].double() / 255
    chosen = chosen.transpose(0, 1).flatten(1)
    np.testing.assert_allclose(mean, chosen.mean(1), rtol=1e-3)
    np.testing.assert_allclose(std, chosen.std(1, correction=0), rtol=1e-3)


def test_statistics_unreadable_images(tmp_path: Path) -> None:
    """Unreadable images are passed over."""
    root = _folder(tmp_path / "images", 3)
    expected = statistics.measured(open_source(f"folder:{root}"))
    (root / "0-broken.png").write_bytes(b"x")
    assert statistics.measured(open_source(f"folder:{root}")) == expected
    for path in root.glob("?.png"):
        path.unlink()
    with pytest.raises(UserError, match=r"none of 1 images can be read.*0-broken"):
        statistics.measured(open_source(f"folder:{root}"))
