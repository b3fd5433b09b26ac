"""Sinkhorn codes in fp32; the tests of SwAV compare codes with the published rule."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hexa.ops.sinkhorn import sinkhorn


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
        torch.testing.assert_close(codes.sum(1), torch.ones(3))
    assert torch.equal(extreme, before)


def test_sinkhorn_small_epsilon() -> None:
    """Rows sum to 1 although all scores are far below 1."""
    stream = torch.Generator().manual_seed(0)
    rows, prototypes = (
        F.normalize(torch.randn(count, 128, generator=stream)) for count in (64, 300)
    )
    scores = rows @ prototypes.T
    codes = sinkhorn(scores, 0.005)
    exact = sinkhorn(scores.double(), 0.005)
    torch.testing.assert_close(codes.sum(1), torch.ones(64))
    torch.testing.assert_close(codes.double(), exact, atol=1e-6, rtol=0)
