"""Muon: convolutions turn along orthogonalised momentum (Jordan et al., 2024), all else follows SGD.

torch's Muon takes matrices alone, and timm's updates all else by AdamW; neither keeps the norms of convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Coefficients of the Newton–Schulz iteration, chosen by Jordan et al. for speed; singular values end in about
#: [0.7, 1.2] instead of at 1. And its number of steps.
_NEWTON_SCHULZ, _STEPS = (3.4445, -4.7750, 2.0315), 5


class Muon(torch.optim.Optimizer):
    """Groups with `orthogonal` hold convolutions θ [out, in, k, k], seen as matrices [out, in·k²]; others follow SGD.

        v ← μ·v + g,   U = orthogonalised(g + μ·v),   θ' = θ − lr · ‖θ‖/‖U‖ · U,   θ ← θ' · ‖θ‖/‖θ'‖

    The norm of each convolution stays what it begins as, which makes no difference where a batch-norm follows it (the
    speed runs of airbench normalise to a fixed norm); lr is the angle of a step, in radians while it is small.
    There is no weight decay of convolutions. A convolution of zeros stays zero. SGD: v ← μ·v + (g + λ·θ); θ ← θ − lr·v.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change the parameters that have a gradient."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                if not group["orthogonal"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                if "velocity" not in self.state[parameter]:
                    self.state[parameter]["velocity"] = torch.zeros_like(parameter)
                velocity = self.state[parameter]["velocity"].mul_(momentum).add_(gradient)
                if not group["orthogonal"]:
                    parameter.add_(velocity, alpha=-rate)
                    continue
                turn = orthogonalised(gradient.add(velocity, alpha=momentum).flatten(1)).view_as(parameter)
                norm = parameter.norm()
                parameter.sub_(turn.mul_(rate * norm / turn.norm().clamp_min(1e-12)))
                parameter.mul_(norm / parameter.norm().clamp_min(1e-12))


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U·Vᵀ of a matrix X = U·S·Vᵀ [n, m]; products must have the precision of fp32, not TF32's.

    The iteration X ← F·X, F = a·I + b·A + c·A², A = X·Xᵀ, is of products P ← F·P and A ← F·A·F with P = I at first, all
    of the smaller side squared, and P·X in the end: half the cost for the wide matrices of convolutions.
    """
    a, b, c = _NEWTON_SCHULZ
    x = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    x = x / x.norm().clamp_min(1e-12)
    if upright := len(x) > x.shape[1]:
        x = x.T
    gram, product = x @ x.T, torch.eye(len(x), dtype=x.dtype, device=x.device)
    for _ in range(_STEPS):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        product = factor @ product
        gram = factor @ gram @ factor
    found: Tensor = product @ x
    return (found.T if upright else found).to(matrix.dtype)
