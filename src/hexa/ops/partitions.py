"""Statistics of clusterings: agreement of two clusterings, and evenness of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hexa.runtime import processes


def entropy_share(sizes: Tensor) -> float:
    """−Σ p ln p / ln K of cluster sizes [K]: 1 for clusters of equal size, 0 if one cluster has all
    rows."""
    if len(sizes) < 2:
        return 1.0
    return _entropy(sizes) / math.log(len(sizes))


def mutual_information(first: Tensor, second: Tensor) -> float:
    """Normalised mutual information of two labellings [N], over the elements where both are ≥ 0.

    I(a; b) / ½ (H(a) + H(b)), between 0 and 1; 1 if both have a single cluster.
    """
    both = (first >= 0) & (second >= 0)
    if not bool(both.any()):
        return 0.0
    a = first[both].long()
    b = second[both].long()
    pairs = a * (int(b.max()) + 1) + b
    joint = _entropy(torch.unique(pairs, return_counts=True)[1])
    apart = _entropy(a.bincount()) + _entropy(b.bincount())
    if apart == 0:
        return 1.0
    return max(0.0, 2 * (apart - joint) / apart)


def health(
    now: Tensor,
    before: Tensor,
    sizes: Sequence[int],
    labels: Tensor | None,
) -> dict[str, float]:
    """Return statistics of several clusterings, as means over them (F30); empty except on the main
    process.

    The statistics: share of non-empty clusters; entropy as a share of ln K; normalised mutual
    information with the previous clusters and, if given, with the labels.
    now, before: clusters of all images in this epoch and the previous one, [H, N], negative if
    unassigned.
    sizes: number of clusters of each of the H clusterings.
    labels: [N] or None.
    """
    if not processes.is_main():
        return {}
    now = now.cpu().long()
    before = before.cpu().long()
    known = labels is not None and labels.ndim == 1 and bool((labels >= 0).any())
    facts: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        name = f"clusters/{name}"
        facts[name] = facts.get(name, 0.0) + value

    for row, previous, size in zip(now, before, sizes, strict=True):
        counts = row[row >= 0].bincount(minlength=size)
        note("non_empty", float((counts > 0).double().mean()))
        note("entropy", entropy_share(counts))
        if bool((before >= 0).any()):
            note("nmi_previous", mutual_information(row, previous))
        if labels is not None and known:
            note("nmi_labels", mutual_information(row, labels))
    return {name: total / len(sizes) for name, total in facts.items()}


def _entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum().clamp_min(1)
    return float(torch.special.entr(share).sum())
