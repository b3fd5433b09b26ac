"""How two partitions of the same images relate, and how evenly one spreads."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy_share(sizes: Tensor) -> float:
    """−Σ p ln p / ln K of cluster sizes [K]: 1 for clusters of one size, 0 for a single one."""
    if len(sizes) < 2:
        return 1.0
    share = sizes.double() / sizes.sum().clamp_min(1)
    return float(torch.special.entr(share).sum()) / math.log(len(sizes))


def mutual_information(first: Tensor, second: Tensor) -> float:
    """Normalised mutual information of two labellings [N], over the elements where both are at least 0.

    I(a; b) / ½ (H(a) + H(b)), between 0 and 1; 1 if both put everything in one part.
    """
    both = (first >= 0) & (second >= 0)
    if not bool(both.any()):
        return 0.0
    a, b = first[both].long(), second[both].long()
    _, counts = torch.unique(a * (int(b.max()) + 1) + b, return_counts=True)
    joint = _entropy(counts)
    ours, theirs = _entropy(a.bincount()), _entropy(b.bincount())
    if ours + theirs == 0:
        return 1.0
    return max(0.0, 2 * (ours + theirs - joint) / (ours + theirs))


def _entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum()
    return float(torch.special.entr(share).sum())
