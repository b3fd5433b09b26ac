"""Sinkhorn codes: a doubly balanced table, safe numbers."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hexa.ops.sinkhorn import sinkhorn


def scores(rows: int, prototypes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(rows, 6, generator=generator, dtype=dtype), dim=1)
    return z @ F.normalize(torch.randn(prototypes, 6, generator=generator, dtype=dtype), dim=1).T


def test_sinkhorn_marginals() -> None:
    """Rows sum to one, and columns come to share alike."""
    few = sinkhorn(scores(30, 5), iterations=3)
    many = sinkhorn(scores(30, 5), iterations=200)
    for codes in (few, many):
        torch.testing.assert_close(codes.sum(1), torch.ones(30, dtype=torch.float64))
    torch.testing.assert_close(many.sum(0), torch.full((5,), 6.0, dtype=torch.float64))
    assert float((few.sum(0) - 6).abs().max()) > 1e-6


def test_sinkhorn_fp32_extremes() -> None:
    """Codes are finite in fp32 at the extremes, and the input stays as it was."""
    extreme = torch.tensor(
        [
            [1.0, -1.0],
            [1.0, -1.0],
            [1.0, -1.0],
        ]
    )
    before = extreme.clone()
    for epsilon in (0.05, 0.005):
        codes = sinkhorn(extreme, epsilon)
        assert codes.dtype == torch.float32
        assert bool(codes.isfinite().all())
    assert torch.equal(extreme, before)
