"""Users' own networks as backbones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hexa.weights.pretrained import load_backbone
from tests.refusals import one_line

SOURCE = """
import torch
from torch import nn


class Maps(nn.Module):
    mean, std, image_size = (0.1, 0.2, 0.3), (0.5, 0.5, 0.5), 8

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, images):
        return self.conv(images)


class Pair(nn.Module):
    def forward(self, images):
        return images, images


def maps(): return Maps()
def bare(): return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
def pair(): return Pair()
def wrong(): return 3
def fails(): return nn.Linear(7, 2)
def raises(): raise OSError("weights are\\nsomewhere else")
def asks(path): return Maps()
def declares(name, value):
    network = Maps()
    setattr(network, name, value)
    return network
def one_mean(): return declares("mean", 0.5)
def big(): return declares("image_size", "big")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_networks.py"
    path.write_text(SOURCE)
    return path


def test_external_network_maps(file: Path) -> None:
    """Maps are averaged and normalised as the network declares."""
    backbone = load_backbone(f"python:{file}:maps")
    assert backbone.image_size == 8
    assert backbone.num_features == 5
    assert backbone.std == (0.5, 0.5, 0.5)
    images = torch.rand(4, 3, 8, 8)
    normalised = (images - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / 0.5
    conv = backbone.network.get_submodule("network.conv")
    torch.testing.assert_close(backbone(images), conv(normalised).mean((2, 3)))
    assert backbone.content_hash() == load_backbone(f"python:{file}:maps").content_hash()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("python:nothing", "write python:FILE.py:CALLABLE"),
        ("python:no_such_module:f", "no such file"),
        ("python:FILE:mpas", "no function 'mpas'; did you mean 'maps'"),
        ("python:FILE:wrong", "returned int, not a torch.nn.Module"),
        (
            "python:FILE:pair",
            r"must return features \[B, D\] .* got tuple for images \(2, 3, 224, 224\)",
        ),
        ("python:FILE:fails", r"fails on images \(2, 3, 224, 224\): RuntimeError"),
        ("python:FILE.none.py:f", "no such file"),
        ("python:FILE:raises", r"raises\(\) raised OSError"),
        (
            "python:FILE:asks",
            r"asks\(\) raised TypeError",
        ),
        ("python:FILE:one_mean", "mean .* 0.5"),
        ("python:FILE:big", "size must be an integer .*'big'"),
    ],
)
def test_external_network_mistakes(file: Path, spec: str, said: str) -> None:
    """Mistakes are one line."""
    with one_line(said):
        load_backbone(spec.replace("FILE", str(file)))
