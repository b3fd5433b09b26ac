"""The rate distortion of a batch of directions (total coding rate; Ma et al., 2007), which is high if they spread."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def coding_rate(rows: Tensor, distortion: float) -> Tensor:
    """R(Z) = ½ log det(I + d / (n ε²) · Zᵀ Z), in fp32 or better, with gradient.

    rows: Z [..., n, d], unit rows. distortion: ε². Returns R [...], in nats.
    """
    with torch.autocast(rows.device.type, enabled=False):
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        count, width = rows.shape[-2:]
        gram = rows @ rows.mT if count < width else rows.mT @ rows  # the same determinant
        identity = torch.eye(gram.shape[-1], dtype=rows.dtype, device=rows.device)
        return torch.logdet(identity + width / (count * distortion) * gram) * 0.5


def largest_rate(count: int, width: int, distortion: float) -> float:
    """The largest R of `count` unit rows of this width: min(n, d) orthogonal directions, each used equally often."""
    rank = min(count, width)
    return 0.5 * rank * math.log(1 + width / (rank * distortion))
