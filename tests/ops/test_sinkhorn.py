"""Sinkhorn codes in fp32; the tests of SwAV compare codes with the published rule."""

from __future__ import annotations

import torch

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
    torch.testing.assert_close(sinkhorn(extreme / 4, 0.005).sum(1), torch.ones(3))
    assert torch.equal(extreme, before)
