"""Neighbourhoods in feature space, a label-free comparison of backbones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

#: Number of compared neighbours.
NEIGHBOURS = 10
#: Number of rows of similarities in memory at a time.
_CHUNK = 512


@torch.no_grad()
def neighbours(
    features: Tensor,
    k: int = NEIGHBOURS,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the k nearest images of each of `rows` (default: all), without the image itself; int64 [n, k].

    The similarity is the cosine of centred features [N, D], computed in chunks.
    """
    x = functional.normalize(features.float() - features.float().mean(0), dim=1)
    rows = torch.arange(len(x)) if rows is None else rows
    found = []
    for part in torch.split(rows, _CHUNK):
        similarity = x[part] @ x.T
        similarity.scatter_(1, part[:, None], -torch.inf)
        found.append(similarity.topk(min(k, len(x) - 1)).indices)
    return torch.cat(found)


def kept(
    reference: Tensor,
    other: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the share of neighbours that features [N, D] and [N, D'] have in common; float [n], for `rows` or all."""
    before = neighbours(reference, rows=rows)
    after = neighbours(other, rows=rows)
    same = before[:, :, None] == after[:, None, :]
    return same.any(2).double().mean(1)
