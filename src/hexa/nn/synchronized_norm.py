"""Batch-norm with statistics over the images of several processes (SyncBN; F5, F8, F19)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.runtime import processes


class SynchronizedNorm(torch.autograd.Function):
    """Normalise x, [B, C] or [B, C, H, W], with mean and variance over the images of `part`
    consecutive processes.

        y = (x − E[x]) / √(Var[x] + eps) · weight + bias

    Returns y, and E[x] and the unbiased Var[x], [1, C], for running statistics, bit-identical on
    every process of the part. Statistics are fp32 or better. Processes may have different numbers
    of images. All must call this in the same order and back-propagate: the input gradient belongs
    to the sum of all processes' losses, and the gradients of weight and bias are this process's
    share, as for any other parameter. One collective per direction. The statistics are computed
    outside of torch's fused kernels, which keep channels_last.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        part: int,
    ) -> tuple[Tensor, ...]:
        channels = x.shape[1]
        dtype = torch.promote_types(x.dtype, torch.float32)
        # the op requires running statistics; their type also makes it compute those of bf16 in fp32
        nothing = torch.zeros(channels, dtype=dtype, device=x.device)
        mean, var = torch.batch_norm_update_stats(x, nothing, nothing, 0.0)
        count = torch.full((1,), x.numel() // channels, dtype=dtype, device=x.device)
        own = torch.cat([mean.to(dtype), var.to(dtype), count])
        every = processes.all_gather(own[None], part)  # [P, 2C + 1]
        means, variances, counts = torch.split(every, [channels, channels, 1], 1)
        total = counts.sum()
        share = counts / total
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        y = F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
        seen = mean[None]
        unbiased = (var * (total / (total - 1)))[None]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, var, total)
        ctx.eps = eps
        ctx.part = part
        ctx.mark_non_differentiable(seen, unbiased)
        return y, seen, unbiased

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """dx = weight / √(Var[x] + eps) · (dy − E[dy] − x̂ · E[dy·x̂]), x̂ the normalised x, E over
        the part's images."""
        x, weight, mean, var, total = ctx.saved_tensors
        dy = gradients[0].to(x.dtype)
        # dx is only the first term so far; Σ dy·x̂ and Σ dy are the gradients of weight and bias
        needs_dx = bool(ctx.needs_input_grad[0])
        wanted = [needs_dx, True, True]
        invstd = (var + ctx.eps).rsqrt()
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            dy, x, weight, mean, var, mean, invstd, False, ctx.eps, wanted
        )
        if not needs_dx:
            return None, dweight, dbias, None, None
        both = torch.stack([dweight, dbias]).to(mean.dtype)
        sums = processes.all_reduce_sum(both, ctx.part)
        factors = weight * invstd * sums / total
        along, level = factors.to(weight.dtype)
        dx = dx.sub_(F.batch_norm(x, mean, var, along, level, False, 0.0, ctx.eps))
        return dx, dweight, dbias, None, None
