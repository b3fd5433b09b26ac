"""Contrastive losses as pure functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def info_nce(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float, extra: Tensor | None = None
) -> Tensor:
    """InfoNCE with one positive a query, in fp32 (REFERENCE §1.2, §2.3).

        ℓ = −log [ exp(q·k⁺/τ) / ( exp(q·k⁺/τ) + Σ_j exp(q·n_j/τ) + Σ_e exp(s_e/τ) ) ]

    query, positive: [..., D], unit rows. negatives: [K, D], unit rows. extra: further similarities s [..., E] of the
    denominator, −∞ where there is none. Returns [...]. Only query and extra get a gradient: keys are labels.
    """
    with torch.autocast(query.device.type, enabled=False):
        dtype = torch.promote_types(query.dtype, torch.float32)
        query, positive, negatives = query.to(dtype), positive.detach().to(dtype), negatives.to(dtype)
        shape, width = query.shape[:-1], query.shape[-1]
        # the queue is written in place after the step; nothing of it may be needed by then
        rest: Tensor = _LogSumExp.apply(query.reshape(-1, width), negatives, temperature).view(shape)
        own = (query * positive).sum(-1) / temperature
        if extra is not None:
            rest = torch.logaddexp(rest, (extra.to(dtype) / temperature).logsumexp(-1))
        return torch.logaddexp(own, rest) - own


def is_nearest(query: Tensor, positive: Tensor, negatives: Tensor, extra: Tensor | None = None) -> Tensor:
    """Whether the positive is more similar to the query than every negative; bool [...]. Arguments as `info_nce`."""
    query, positive, negatives = query.float(), positive.float(), negatives.float()
    own = (query * positive).sum(-1)
    nearest = own > (query @ negatives.T).amax(-1)
    return nearest if extra is None else nearest & (own > extra.amax(-1))


class _LogSumExp(torch.autograd.Function):
    """log Σ_j exp(q·n_j/τ) for unit rows, [N, D] × [K, D] -> [N], with its gradient to q alone.

    Similarities of unit rows are at most 1, so 1/τ is subtracted instead of a maximum that would have to be searched;
    everything happens in one buffer [N, K], which becomes the softmax that the backward pass needs.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, negatives: Tensor, temperature: float) -> Tensor:
        weights = torch.mm(query, negatives.T).sub_(1).div_(temperature).exp_()
        total = weights.sum(1)
        ctx.save_for_backward(weights, total, negatives)
        ctx.temperature = temperature
        return total.log() + 1 / temperature

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, total, negatives = ctx.saved_tensors
        return torch.mm(weights, negatives) * (gradients[0] / (total * ctx.temperature))[:, None], None, None
