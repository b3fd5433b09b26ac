"""Gradients of depthwise convolutions: against PyTorch's own, in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from hexa.nn.depthwise import quicken, weight_gradient


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(5, 1, 2), (5, 2, 2), (3, 1, 1), (3, 2, 0), (5, 2, 4)]
)
def test_the_gradient_of_the_weights_is_pytorchs(
    size: int, kernel: int, stride: int, padding: int
) -> None:
    if size + 2 * padding < kernel:
        pytest.skip("the kernel is larger than the padded map")
    torch.manual_seed(0)
    x = torch.randn(3, 7, size, size + 1, dtype=torch.float64)
    weight = torch.randn(7, 1, kernel, kernel, dtype=torch.float64, requires_grad=True)
    y = torch.conv2d(x, weight, None, stride, padding, 1, 7)
    y.backward(gradient := torch.randn_like(y))  # type: ignore[no-untyped-call]
    own = weight_gradient(x, gradient, weight.shape, (stride, stride), (padding, padding))
    torch.testing.assert_close(own, weight.grad)


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "mobilenetv3_small_100"])
def test_a_network_learns_as_before(name: str) -> None:
    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=0).double()
    quick = quicken(copy.deepcopy(plain))
    assert quicken(quick) is quick
    pixels, found = torch.rand(2, 3, 64, 64, dtype=torch.float64), []
    for network in (plain, quick):
        views = pixels.clone().requires_grad_()
        features = network.eval()(views)
        features.square().sum().backward()
        found.append(
            [features.detach(), views.grad, *(parameter.grad for parameter in network.parameters())]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert quick.state_dict().keys() == plain.state_dict().keys()


def test_it_is_used_where_maps_are_smaller_than_the_kernel_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def counted(x: Tensor, *more: Any) -> Tensor:
        calls.append(x.shape[-1])
        return weight_gradient(x, *more)

    monkeypatch.setattr("hexa.nn.depthwise.weight_gradient", counted)
    conv = quicken(nn.Conv2d(4, 4, 5, padding=2, groups=4))
    for size in (4, 5):
        conv(torch.rand(1, 4, size, size)).sum().backward()
    with torch.no_grad():
        conv(torch.rand(1, 4, 3, 3))
    assert calls == [4]
