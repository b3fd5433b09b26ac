"""ReLU6 that keeps its result."""

from __future__ import annotations

import torch
from torch import nn

from hexa.nn.activations import ReLU6, with_lean_activations


def test_relu6_gradients() -> None:
    """Bit for bit torch's, also at the corners; what came before is left alone."""
    corners = torch.tensor([-1.0, 0.0, 3.0, 6.0, 7.0])
    x = torch.cat([corners, 10 * torch.randn(64)]).requires_grad_()
    results = []
    for module in (ReLU6(), nn.ReLU6()):
        y = module(x)
        (slope,) = torch.autograd.grad(y.square().sum(), x)
        with torch.no_grad():
            results.append(torch.stack([y, slope, module(x)]))
    assert torch.equal(*results)


def test_shared_relu6() -> None:
    """A module with two names is replaced under both."""
    shared = nn.ReLU6(inplace=True)
    lean = with_lean_activations(
        nn.Sequential(
            nn.Linear(4, 4),
            shared,
            nn.Linear(4, 4),
            shared,
        )
    )
    assert type(lean[1]) is type(lean[3]) is ReLU6
