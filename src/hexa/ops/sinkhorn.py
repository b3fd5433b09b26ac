"""Sinkhorn–Knopp: codes that use all prototypes equally (F9)."""

from __future__ import annotations

import torch
from torch import Tensor

from hexa.runtime.precision import at_least_fp32


def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Return codes [B, K] of scores (cosines) [B, K]: rows sum to 1, columns to nearly B / K; in
    fp32 or better.

        Q = exp(s / ε);  n times:  Q_bk ← Q_bk / (K · Σ_b Q_bk),  then  Q_bk ← Q_bk / (B · Σ_k Q_bk)

    The codes are B · Q. exp((s − 1) / ε), which is equal up to a factor that cancels, cannot
    overflow, because cosines are at most 1. For ε below 0.02 it could underflow everywhere, so the
    largest score takes the place of 1.
    """
    most = scores.max() if epsilon < 0.02 else 1
    with torch.autocast(scores.device.type, enabled=False):
        codes = at_least_fp32(scores).sub(most).div_(epsilon).exp_()
        # avoids 0 / 0 if all similarities to a prototype underflow
        tiny = torch.finfo(codes.dtype).tiny
        for _ in range(iterations):
            # the constants K and B of the equation cancel in the next division, and in the codes
            codes /= codes.sum(0, keepdim=True).clamp_min_(tiny)
            codes /= codes.sum(1, keepdim=True).clamp_min_(tiny)
        return codes
