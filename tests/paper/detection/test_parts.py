"""Networks taken apart: the parts are the network's own modules and give the network's own maps."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter

from hexa.weights.external import External
from hexa_paper.detection.parts import parts


def maps_of(network: nn.Module, images: Tensor) -> list[Tensor]:
    found = []
    with torch.no_grad():
        for part in parts(network, "it"):
            images = part.module(images)
            assert images.shape[1] == part.channels
            found.append(images)
    return found


def test_resnet_stages() -> None:
    """A ResNet is cut at its stages."""
    network = torchvision.models.resnet18(weights=None).eval()
    found = [(part.stride, part.channels) for part in parts(network, "it")]
    assert found == [
        (2, 64),
        (4, 64),
        (8, 128),
        (16, 256),
        (32, 512),
    ]
    images = torch.rand(2, 3, 64, 96)
    layers = IntermediateLayerGetter(network, {f"layer{n}": str(n) for n in range(1, 5)})
    with torch.no_grad():
        expected = list(layers(images).values())
    for ours, theirs in zip(maps_of(network, images)[1:], expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "convnext_atto", "regnetx_002"])
def test_timm_maps(name: str) -> None:
    """Networks of timm give the maps that timm takes."""
    network = timm.create_model(name, num_classes=0).eval()
    images = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        theirs = network.forward_intermediates(images, intermediates_only=True)
        last = network.forward_features(images)
    ours = {tuple(value.shape[2:]): value for value in maps_of(network, images)}
    assert torch.equal(list(ours.values())[-1], last)
    inner = [value for value in theirs[1:-1] if tuple(value.shape[2:]) in ours]
    assert len(inner) >= 2
    for value in inner:
        torch.testing.assert_close(ours[tuple(value.shape[2:])], value)


class Wrapped(nn.Module):
    """A network that `python:` may return: it is called inside, partly by a method other than
    forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 2, 1)
        self.act = nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList([nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 6, 3, 2, 1)])

    def maps(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        for block in self.blocks:
            x = self.act(block(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(x)


def test_foreign_network_parts() -> None:
    network = External(Wrapped(), "python:x").eval()
    found = [(part.stride, part.channels, len(part.module)) for part in parts(network, "it")]
    expected = [
        (2, 4, 4),
        (4, 6, 2),
    ]
    assert found == expected
    images = torch.rand(2, 3, 32, 48)
    with torch.no_grad():
        torch.testing.assert_close(maps_of(network, images)[-1].mean((2, 3)), network(images))
