"""ReLU6 that keeps its result."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hexa.nn.activations import ReLU6, with_lean_activations


def test_relu6_gradients() -> None:
    """Bit for bit torch's, also at the corners; what came before is left alone."""
    plain = nn.Sequential(nn.Linear(4, 64), nn.ReLU6(inplace=True), nn.Linear(64, 3))
    torch.manual_seed(0)
    plain[0].weight.data.mul_(20)
    lean = with_lean_activations(copy.deepcopy(plain))
    assert type(lean[1]) is ReLU6
    x = torch.randn(32, 4).requires_grad_()
    results = []
    for network in (plain, lean):
        y = network(x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *network.parameters()])
        results.append([y, *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    corners = torch.tensor([-1.0, 0.0, 3.0, 6.0, 7.0], requires_grad=True)
    for module in (ReLU6(), nn.ReLU6()):
        (slope,) = torch.autograd.grad(module(corners).sum(), corners)
        assert slope.tolist() == [0, 0, 1, 0, 0]
    with torch.no_grad():
        assert torch.equal(lean(x), plain(x))


def test_shared_relu6() -> None:
    """A module with two names is replaced under both."""
    shared = nn.ReLU6(inplace=True)
    lean = with_lean_activations(nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared))
    assert type(lean[1]) is type(lean[3]) is ReLU6
