"""Neighbourhoods of features, which need no labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

#: Neighbours that are compared.
NEIGHBOURS = 10
#: Rows of similarities that are held at a time.
_CHUNK = 512


@torch.no_grad()
def neighbours(
    features: Tensor,
    k: int = NEIGHBOURS,
    rows: Tensor | None = None,
) -> Tensor:
    """The k images most similar to each of these rows, or to all, itself left out: int64 [n, k].

    By cosine of centred features [N, D]; the similarities are made in chunks.
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
    """The share of the nearest of these rows, or of all, that survives from features [N, D] to others [N, D'];
    float [n]."""
    before = neighbours(reference, rows=rows)
    after = neighbours(other, rows=rows)
    same = before[:, :, None] == after[:, None, :]
    return same.any(2).double().mean(1)
