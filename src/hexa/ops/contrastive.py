"""Contrastive losses as pure functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hexa.runtime.precision import at_least_fp32

#: Smallest τ at which exp(−2/τ) is a normal number of fp32.
_SAFE_TEMPERATURE = 0.03


def info_nce(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: float,
    extra: Tensor | None = None,
    positive_included: bool = False,
) -> Tensor:
    """InfoNCE with one positive per query, in fp32 (F3, F4).

        ℓ = −log [ exp(q·k⁺/τ) / ( exp(q·k⁺/τ) + Σ_j exp(q·n_j/τ) + Σ_e exp(s_e/τ) ) ]

    query, positive: [..., D], unit rows.
    negatives: [K, D], unit rows.
    extra: additional similarities s [..., E] for the denominator, −∞ where absent.
    positive_included: the positive is a row of `negatives`, which then are the whole denominator.
    Returns [...]. Only query and extra receive a gradient: keys are labels.
    """
    with torch.autocast(query.device.type, enabled=False):
        query = at_least_fp32(query)
        # the queue is overwritten in place after the step, so backward must not read it later
        rows = query.flatten(0, -2)
        rest: Tensor = _LogSumExp.apply(rows, negatives.to(query.dtype), temperature)
        rest = rest.view(query.shape[:-1])
        own = (query * positive.detach().to(query.dtype)).sum(-1) / temperature
        if extra is not None:
            scaled = extra.to(query.dtype) / temperature
            rest = torch.logaddexp(rest, scaled.logsumexp(-1))
        total = rest if positive_included else torch.logaddexp(own, rest)
        return total - own


def is_nearest(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    extra: Tensor | None = None,
) -> Tensor:
    """Return whether the positive is more similar to the query than all negatives; bool [...].
    Arguments as for `info_nce`."""
    query = query.float()
    own = (query * positive.float()).sum(-1)
    nearest = own > (query @ negatives.float().T).amax(-1)
    if extra is not None:
        nearest &= own > extra.amax(-1)
    return nearest


class _LogSumExp(torch.autograd.Function):
    """log Σ_j exp(q·n_j/τ) for unit rows, [N, D] × [K, D] -> [N], with a gradient to q only.

    Similarities of unit rows are in [−1, 1], so 1/τ is subtracted instead of the maximum, unless τ
    is so small that every term could underflow. One buffer [N, K] holds all intermediate values and
    becomes the softmax that the backward pass needs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        negatives: Tensor,
        temperature: float,
    ) -> Tensor:
        weights = torch.mm(query, negatives.T)
        highest: float | Tensor = 1.0
        if temperature < _SAFE_TEMPERATURE:
            highest = weights.amax(1, keepdim=True)
        weights.sub_(highest).div_(temperature).exp_()
        total = weights.sum(1)
        ctx.save_for_backward(weights, total, negatives)
        ctx.temperature = temperature
        if isinstance(highest, Tensor):
            highest = highest.squeeze(1)
        return total.log() + highest / temperature

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, total, negatives = ctx.saved_tensors
        factor = gradients[0] / (total * ctx.temperature)
        return torch.mm(weights, negatives) * factor[:, None], None, None


def nt_xent(
    query: Tensor,
    dictionary: Tensor,
    own: Tensor,
    shown: Tensor,
    temperature: float,
) -> Tensor:
    """NT-Xent of views against a dictionary of the W views of a batch, in fp32 (F6, F16).

        ℓ_vi = mean over w ≠ v of −log [ exp(q_vi·d_wj/τ) / Σ_(u,m) exp(q_vi·d_um/τ) ],   j = own_i,

    where (u, m) runs over the dictionary except for the images that the query shows: (v, own_i) and
    (v, m) for m in shown_i.
    query: [V, B, D], the first V of the views; dictionary: [W, M, D]; unit rows; both may receive a
    gradient.
    own: int64 [B], shown: [B, S], indices into the dictionary.
    Returns [V, B]. More than two views: Khosla et al., 2020, L_out.
    """
    scores, positives = _dictionary_scores(query, dictionary, own, shown)
    with torch.autocast(query.device.type, enabled=False):
        scores = scores / temperature
        return scores.logsumexp(-1) - scores.gather(-1, positives).mean(-1)


def finds_other_view(
    query: Tensor,
    dictionary: Tensor,
    own: Tensor,
    shown: Tensor,
) -> Tensor:
    """Return whether the most similar row is another view of the query's image, bool [V, B].
    Arguments as for `nt_xent`."""
    scores, positives = _dictionary_scores(query, dictionary, own, shown)
    return scores.argmax(-1, keepdim=True).eq(positives).any(-1)


def _dictionary_scores(
    query: Tensor,
    dictionary: Tensor,
    own: Tensor,
    shown: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return cosines [V, B, W·M], −∞ where excluded, and the indices [V, B, W − 1] of the
    positives."""
    size = dictionary.shape[1]
    views = torch.arange(len(query), device=query.device)[:, None]
    others = torch.arange(len(dictionary) - 1, device=query.device)
    others = others + (others >= views)  # [V, W − 1]: all but the query's own
    with torch.autocast(query.device.type, enabled=False):
        query = at_least_fp32(query)
        scores = query @ dictionary.to(query.dtype).flatten(0, 1).T
    hidden = torch.cat([own[:, None], shown], 1) + views[..., None] * size  # [V, B, 1 + S]
    positives = own[:, None] + others[:, None] * size
    return scores.scatter(-1, hidden, -torch.inf), positives
