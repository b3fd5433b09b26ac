"""Muon: orthogonalised momentum rotates convolutions (Jordan et al., 2024); all other parameters
follow SGD.

torch's Muon accepts only matrices, and timm's updates the other parameters with AdamW; neither
keeps the norms of convolutions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.runtime.precision import at_least_fp32

#: Coefficients of the Newton–Schulz iteration, chosen by Jordan et al. for speed; singular values
#: end in about [0.7, 1.2] instead of at 1.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
#: Number of Newton–Schulz iterations.
_STEPS = 5


def with_gradients(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[dict[str, Any], list[Tensor], Any]]:
    """Yield each group of an optimizer, its parameters that have a gradient, and these gradients."""
    for group in optimizer.param_groups:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if parameters:
            yield group, parameters, [parameter.grad for parameter in parameters]


def move(parameters: list[Any], steps: Any, rate: float | Tensor) -> None:
    """θ ← θ − lr·v for each parameter; the rate is a number or a 0-d tensor on the device."""
    if isinstance(rate, Tensor):
        torch._foreach_sub_(parameters, torch._foreach_mul(steps, rate))
    else:
        torch._foreach_add_(parameters, steps, alpha=-rate)


def velocities(
    optimizer: torch.optim.Optimizer,
    parameters: list[Tensor],
    gradients: Any,
    momentum: float,
    name: str,
) -> list[Tensor]:
    """v ← μ·v + g for each parameter, kept in its state under this name; the first v is g."""
    states = [optimizer.state[parameter] for parameter in parameters]
    for state, parameter in zip(states, parameters, strict=True):
        if state.get(name) is None:
            state[name] = torch.full_like(parameter, -0.0)  # -0.0 + g is g, bit for bit
    found = [state[name] for state in states]
    torch._foreach_mul_(found, momentum)
    torch._foreach_add_(found, gradients)
    return found


class Muon(torch.optim.Optimizer):
    """Groups with `orthogonal` hold convolutions θ [out, in, k, k], seen as matrices [out, in·k²];
    others follow SGD.

        v ← μ·v + g,   U = orthogonalised(g + μ·v),   θ' = θ − lr · ‖θ‖/‖U‖ · U,   θ ← θ' · ‖θ‖/‖θ'‖

    Each convolution keeps its initial norm, which makes no difference if a batch-norm follows (the
    speed runs of airbench normalise to a fixed norm). lr is the angle of a step, in radians while
    it is small. Convolutions have no weight decay. A convolution of zeros stays zero. SGD: v ← μ·v
    + (g + λ·θ); θ ← θ − lr·v.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(groups, {**defaults, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        for group, parameters, gradients in with_gradients(self):
            if not group["orthogonal"]:
                gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
            momentum = group["momentum"]
            found = velocities(self, parameters, gradients, momentum, "velocity")
            if group["orthogonal"]:
                ahead = torch._foreach_add(gradients, found, alpha=momentum)
                _turn(parameters, ahead, group["lr"])
            else:
                move(parameters, found, group["lr"])


def _turn(
    kernels: list[Tensor],
    ahead: Sequence[Tensor],
    angle: float | Tensor,
) -> None:
    """Rotate convolutions by an angle against their orthogonalised momentum, in place; their norms
    do not change."""
    matrices = [kernel.flatten(1) for kernel in ahead]
    found = orthogonalised(matrices, together=kernels[0].is_cuda)
    turns = [turn.view_as(kernel) for turn, kernel in zip(found, kernels, strict=True)]
    norms = torch._foreach_norm(kernels)
    lengths = torch._foreach_mul(norms, angle)
    torch._foreach_mul_(turns, torch._foreach_div(lengths, _norms(turns)))
    torch._foreach_sub_(kernels, turns)
    torch._foreach_mul_(kernels, torch._foreach_div(norms, _norms(kernels)))


def _norms(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return torch._foreach_clamp_min(torch._foreach_norm(tensors), 1e-12)


def orthogonalised(matrices: Sequence[Tensor], together: bool) -> list[Tensor]:
    """Return approximately U·Vᵀ of each matrix X = U·S·Vᵀ [n, m]; products need the precision of
    fp32, not TF32.

    The iteration X ← F·X, F = a·I + b·A + c·A², A = X·Xᵀ, is computed as P ← F·P and A ← F·A·F,
    with P = I at first, and P·X at the end. All these matrices have the smaller side squared: half
    the cost for the wide matrices of convolutions.
    together: multiply several matrices in one batch; a GPU would otherwise wait for many small
    launches.
    """
    wide = list(map(at_least_fp32, matrices))
    wide = [x.T if len(x) > x.shape[1] else x for x in torch._foreach_div(wide, _norms(wide))]
    found = _together(wide) if together else [_factor(x @ x.T) @ x for x in wide]
    made = []
    for given, y in zip(matrices, found, strict=True):
        is_tall = len(given) > given.shape[1]
        made.append((y.T if is_tall else y).to(given.dtype))
    return made


def _together(wide: list[Tensor]) -> list[Tensor]:
    """Return `_factor(x @ x.T) @ x` of each matrix. Matrices of one shape are batched; for the
    iteration, squares of similar size are padded with zeros and batched."""
    places = defaultdict[Any, list[int]](list)
    for place, x in enumerate(wide):
        places[x.shape, x.dtype, x.device].append(place)
    batches = [torch.stack([wide[place] for place in alike]) for alike in places.values()]
    grams = defaultdict[Any, list[Tensor]](list)
    for batch in batches:
        side = batch.shape[1]
        padded = F.pad(batch @ batch.mT, (0, _size(side) - side, 0, _size(side) - side))
        grams[_size(side), batch.dtype, batch.device].append(padded)
    factors = {
        kind: iter(torch.split(_factor(torch.cat(parts)), [len(part) for part in parts]))
        for kind, parts in grams.items()
    }
    found = dict[int, Tensor]()
    for alike, batch in zip(places.values(), batches, strict=True):
        side = batch.shape[1]
        factor = next(factors[_size(side), batch.dtype, batch.device])
        found |= zip(alike, factor[:, :side, :side] @ batch, strict=True)
    return [found[place] for place in range(len(wide))]


def _size(side: int) -> int:
    """Return the side to which squares are padded: a power of 2, at least 16."""
    return max(16, 1 << (side - 1).bit_length())


def _factor(gram: Tensor) -> Tensor:
    """Return the product P of the iteration for a matrix A [n, n], or for several [k, n, n]."""
    factor = _polynomial(gram)
    product = factor
    for _ in range(_STEPS - 1):
        gram = factor @ gram @ factor
        factor = _polynomial(gram)
        product = factor @ product
    return product


def _polynomial(gram: Tensor) -> Tensor:
    """F = a·I + b·A + c·A²."""
    a, b, c = _NEWTON_SCHULZ
    combined = torch.addmm if gram.ndim == 2 else torch.baddbmm
    factor = combined(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor
