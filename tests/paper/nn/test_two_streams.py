"""Lightness and colour: the change of colour space by hand, and two networks as one backbone anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hexa.config import UserError
from hexa.nn.backbones import NetworkConfig, build, num_features
from hexa.nn.feature_maps import last_maps
from hexa.weights import start
from hexa.weights.export import export
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from hexa.weights.start import StartConfig
from hexa_paper.nn.two_streams import lab

SMALL = NetworkConfig(name="small-resnet", widths=(4, 8), streams="lab")


def naive(red: float, green: float, blue: float) -> tuple[float, float, float]:
    """The formulas of the CIE and of sRGB, number by number."""

    def linear(u: float) -> float:
        return u / 12.92 if u <= 0.04045 else ((u + 0.055) / 1.055) ** 2.4

    def f(t: float) -> float:
        return t ** (1 / 3) if t > (6 / 29) ** 3 else t * (29 / 6) ** 2 / 3 + 4 / 29

    r = linear(red)
    g = linear(green)
    b = linear(blue)
    x = 0.412453 * r + 0.357580 * g + 0.180423 * b
    y = 0.212671 * r + 0.715160 * g + 0.072169 * b
    z = 0.019334 * r + 0.119193 * g + 0.950227 * b
    x = f(x / 0.95047)
    y = f(y)
    z = f(z / 1.08883)
    return (
        116 * y - 16,
        500 * (x - y),
        200 * (y - z),
    )


def pixels(*colours: tuple[float, float, float]) -> Tensor:
    return torch.tensor(colours, dtype=torch.float64)[:, :, None, None]


def test_lab_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    colours = torch.rand(200, 3, generator=generator, dtype=torch.float64)
    colours = colours**3  # many are dark
    each = [naive(*colour) for colour in colours.tolist()]
    expected = torch.tensor(each, dtype=torch.float64)
    found = lab(colours[:, :, None, None])[..., 0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_lab_gradient_corners() -> None:
    """Black, both sides of the two thresholds, white, and a rounding error outside of the pixels."""
    levels = [0.0, 1e-12, -1e-9, 0.04044, 0.04046, 0.0920, 0.0925, 1.0, 1 + 1e-7]
    colours = [(a, b, c) for a in levels for b in levels for c in (0.0, a, 1.0)]
    given = pixels(*colours).requires_grad_()
    lab(given).abs().sum().backward()
    assert given.grad.isfinite().all()
    black = pixels((0.0, 0.0, 0.0))
    assert (lab(black) == 0).all()
    greys = [(level + 1e-4,) * 3 for level in levels if level >= 0]
    smooth = pixels(*greys).requires_grad_()
    assert torch.autograd.gradcheck(lab, (smooth,), eps=1e-7, atol=1e-3)


def test_two_stream_channels() -> None:
    """Each stream sees its channels of the pixels."""
    network = build(SMALL).eval()
    images = torch.rand(3, 3, 16, 16)
    assert num_features(network) == 16
    mean = torch.tensor(SMALL.mean).view(3, 1, 1)
    std = torch.tensor(SMALL.std).view(3, 1, 1)
    middle = torch.tensor([50.0, 6.025, -6.6895]).view(3, 1, 1)
    half = torch.tensor([50.0, 92.208, 101.1675]).view(3, 1, 1)
    channels = (lab(images) - middle) / half
    assert channels.abs().max() <= 1
    lightness = network.lightness(channels[:, :1])
    colour = network.colour(channels[:, 1:])
    expected = torch.cat([lightness, colour], 1)
    normalised = (images - mean) / std
    found = network(normalised)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    maps = last_maps(network, "two", (16, 16))
    pooled = maps(normalised).mean((2, 3))
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-5)


def test_two_stream_file_roundtrip(tmp_path: Path) -> None:
    """A file of two streams is read back and started from."""
    backbone = random_backbone(SMALL, 16)
    images = torch.rand(2, 3, 16, 16)
    path = save_backbone(backbone, tmp_path / "two.safetensors")
    assert torch.equal(load_backbone(path)(images), backbone(images))
    report = export(path, "safetensors", tmp_path / "again.safetensors")
    assert report["largest_difference"] == 0
    made = start.begun(SMALL, StartConfig(weights=str(path)))
    found = made.state_dict().keys()
    expected = backbone.network.state_dict().keys()
    assert found == expected
    one = SMALL.model_copy(update={"streams": "one"})
    with pytest.raises(UserError, match="weights define the network"):
        start.begun(one, StartConfig(weights=str(path)))
