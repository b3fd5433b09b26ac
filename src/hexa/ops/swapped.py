"""Swapped prediction: each crop predicts the codes of the other crops (SwAV, F9; DINO)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional


def swapped_prediction(
    scores: Tensor,
    codes: Tensor,
    crops: Sequence[int],
) -> Tensor:
    """Return the cross-entropy of codes and predictions over all pairs of a code and another crop.

        ℓ_v = V / P · Σ_{c ≠ v} −Σ_k q_ck · log softmax_k(s_v),   P the number of pairs,

    so that the mean over [V, B] is the mean over pairs.
    scores: [V, B, K], divided by their temperature.
    codes: [A, B, K] of the crops with indices `crops`, which may exceed V.
    Returns [V, B].
    """
    views = len(scores)
    pairs = sum(views - (crop < views) for crop in crops)
    targets = targets_of_others(codes, crops, views)
    losses = -(targets * functional.log_softmax(scores, -1)).sum(-1)
    return losses * (views / max(1, pairs))


def targets_of_others(
    codes: Tensor,
    crops: Sequence[int],
    views: int,
) -> Tensor:
    """Return for each of V crops the sum of the codes [A, B, K] of the other crops: [V, B, K]."""
    targets = codes.sum(0).repeat(views, 1, 1)
    for own, crop in zip(codes, crops, strict=True):
        if crop < views:
            targets[crop] -= own
    return targets
