"""Measures of clusterings: agreement of two, and evenness of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def entropy_share(sizes: Tensor) -> float:
    """−Σ p ln p / ln K of cluster sizes [K]: 1 for clusters of equal size, 0 if one has everything."""
    return 1.0 if len(sizes) < 2 else _entropy(sizes) / math.log(len(sizes))


def mutual_information(first: Tensor, second: Tensor) -> float:
    """Normalised mutual information of two labellings [N], over the elements where both are ≥ 0.

    I(a; b) / ½ (H(a) + H(b)), between 0 and 1; 1 if both have a single cluster.
    """
    both = (first >= 0) & (second >= 0)
    if not bool(both.any()):
        return 0.0
    a = first[both].long()
    b = second[both].long()
    _, counts = torch.unique(a * (int(b.max()) + 1) + b, return_counts=True)
    joint = _entropy(counts)
    ours = _entropy(a.bincount())
    theirs = _entropy(b.bincount())
    return 1.0 if ours + theirs == 0 else max(0.0, 2 * (ours + theirs - joint) / (ours + theirs))


def health(
    now: Tensor, before: Tensor, sizes: Sequence[int], labels: Tensor | None
) -> dict[str, float]:
    """The health of several clusterings, as means over them (F30).

    The share of non-empty clusters; the entropy as a share of ln K; normalised mutual information with the previous
    clusters and with the labels, where they exist. now, before: clusters of all images in this epoch and the last,
    [H, N], negative if unassigned. sizes: H numbers of clusters. labels: [N] or None.
    """
    now = now.cpu().long()
    before = before.cpu().long()
    counts = [row[row >= 0].bincount(minlength=size) for row, size in zip(now, sizes, strict=True)]
    facts = {
        "clusters/non_empty": [float((count > 0).double().mean()) for count in counts],
        "clusters/entropy": [entropy_share(count) for count in counts],
    }
    if bool((before >= 0).any()):
        facts["clusters/nmi_previous"] = [
            mutual_information(*pair) for pair in zip(now, before, strict=True)
        ]
    if labels is not None and labels.ndim == 1 and bool((labels >= 0).any()):
        facts["clusters/nmi_labels"] = [mutual_information(row, labels) for row in now]
    return {name: sum(values) / len(values) for name, values in facts.items()}


def _entropy(counts: Tensor) -> float:
    return float(torch.special.entr(counts.double() / counts.sum().clamp_min(1)).sum())
