"""ReLU6 that saves its result for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class ReLU6(nn.ReLU6):
    """min(max(x, 0), 6). The gradient needs the result alone, but torch's in-place form saves a copy
    of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return _Clipped.apply(x) if torch.is_grad_enabled() else super().forward(x)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = functional.relu6(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradients[0], y, 0.0, 6.0)  # type: ignore[no-any-return]


def with_lean_activations(network: nn.Module) -> nn.Module:
    """Replace every in-place ReLU6 of a network, in place; return the network."""
    if type(network) is nn.ReLU6 and network.inplace:
        return ReLU6(inplace=True)
    # not named_children, which skips the second name of a module
    for name, child in network._modules.items():
        if child is not None:
            setattr(network, name, with_lean_activations(child))
    return network
