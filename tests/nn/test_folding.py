"""Batch-norms folded into convolutions: the same features, from a copy that shares nothing with its
network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from hexa.nn.backbones import NetworkConfig, build
from hexa.nn.branch_norm import BranchBatchNorm, convert
from hexa.nn.folding import folded
from tests.modules import unchanged

#: Name -> network, and how many of its batch-norms cannot be folded.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "torchvision resnet18": (torchvision.models.resnet18, 0),
    "torchvision mobilenet_v3_small": (torchvision.models.mobilenet_v3_small, 0),
    # a layer of a DenseNet begins with a batch-norm
    "torchvision densenet121": (torchvision.models.densenet121, 62),
    "timm efficientnet_lite0": (lambda: timm.create_model("efficientnet_lite0"), 0),
    "timm tf_mobilenetv3_small_075": (lambda: timm.create_model("tf_mobilenetv3_small_075"), 0),
    "timm resnet10t": (lambda: timm.create_model("resnet10t"), 0),
    "timm regnety_002": (lambda: timm.create_model("regnety_002"), 0),
    "hexa small-resnet": (
        lambda: build(NetworkConfig(name="small-resnet", widths=(8, 16))),
        0,
    ),
    "hexa branched": (lambda: convert(timm.create_model("resnet10t")), 0),
}


def stirred(network: nn.Module) -> nn.Module:
    """Return the network with statistics, scales and shifts as after training."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | BranchBatchNorm):
            with torch.no_grad():
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.3, generator=generator)
    return network.eval()


def norms(network: nn.Module) -> int:
    kinds = nn.modules.batchnorm._BatchNorm | BranchBatchNorm
    return sum(isinstance(module, kinds) for module in network.modules())


def pixels(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_folded_features(name: str) -> None:
    make, left = NETWORKS[name]
    network = stirred(make())
    images = pixels()
    expected = network(images)
    with unchanged(network):
        found = folded(network, images[:1] + 1)
    assert norms(found) == left < norms(network)
    torch.testing.assert_close(
        found(images), expected, rtol=0, atol=1e-5 * float(expected.abs().max())
    )


def test_folded_shares_nothing() -> None:
    """The network continues training, and the copy does not learn."""
    network = stirred(torchvision.models.resnet18(num_classes=4))
    copied = folded(network, pixels(1))
    before = copied(pixels()).detach()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    network.train()
    network(pixels()).square().sum().backward()
    optimizer.step()
    assert all(parameter.grad.any() for parameter in network.parameters())
    assert torch.equal(copied(pixels()), before)


class Twice(nn.Module):
    """The output of a convolution goes to a batch-norm and elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class Shared(nn.Module):
    """One convolution before two batch-norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.first = nn.BatchNorm2d(3)
        self.second = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x))))


class Changed(Twice):
    """Between convolution and batch-norm, the output is changed in place."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x).relu_())


class Whimsical(Twice):
    """Refuses to be copied."""

    def __deepcopy__(self, _: object) -> nn.Module:
        raise TypeError("there is only one")


@pytest.mark.parametrize("make", [Twice, Shared, Changed, Whimsical, nn.Flatten])
def test_plain_network_stays(make: Callable[[], nn.Module]) -> None:
    network = stirred(make()).train()
    assert folded(network, pixels(1)) is network
    assert not network.training


def test_folded_under_autocast() -> None:
    """Equality of outputs is checked in the network's own precision."""
    network = stirred(torchvision.models.resnet18()).double()
    with torch.autocast("cpu", torch.bfloat16):
        found = folded(network, pixels(1).double())
    assert not norms(found)
    assert next(found.parameters()).dtype == torch.float64
