"""Contrastive losses as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float, extra: Tensor | None = None
) -> Tensor:
    """InfoNCE with one positive a query, in fp32 (REFERENCE §1.2, §2.3).

        ℓ = −log [ exp(q·k⁺/τ) / ( exp(q·k⁺/τ) + Σ_j exp(q·n_j/τ) + Σ_e exp(s_e/τ) ) ]

    query, positive: [..., D], unit rows. negatives: [K, D]. extra: further similarities s [..., E] of the denominator,
    −∞ where there is none. Returns [...]. The denominator is summed without building the matrix [positive | negatives].
    """
    own, rest = _logits(query, positive, negatives, temperature, extra)
    return torch.logaddexp(own, rest.logsumexp(-1)) - own


def is_nearest(query: Tensor, positive: Tensor, negatives: Tensor, extra: Tensor | None = None) -> Tensor:
    """Whether the positive is more similar to the query than every negative; bool [...]. Arguments as `info_nce`."""
    own, rest = _logits(query, positive, negatives, 1.0, extra)
    return own > rest.amax(-1)


def _logits(
    query: Tensor, positive: Tensor, negatives: Tensor, temperature: float, extra: Tensor | None
) -> tuple[Tensor, Tensor]:
    with torch.autocast(query.device.type, enabled=False):
        dtype = torch.promote_types(query.dtype, torch.float32)
        query, positive, negatives = query.to(dtype), positive.to(dtype), negatives.to(dtype)
        own = (query * positive).sum(-1) / temperature
        rest = (query / temperature) @ negatives.T
        if extra is not None:
            rest = torch.cat([extra.to(dtype) / temperature, rest], -1)
    return own, rest
