"""Batch-norm as autograd functions: with given statistics, and of groups of images."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class FixedNorm(torch.autograd.Function):
    """Batch-norm with the given mean and variance, with an input gradient in the layout of x.

    On a GPU torch returns a contiguous gradient, which the previous convolution must copy back to
    channels_last.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        scale: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, mean, var, weight)
        ctx.eps = eps
        ctx.scale = scale
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, var, weight = ctx.saved_tensors
        dy = gradients[0]
        dx = None
        dweight = None
        dbias = None
        if ctx.needs_input_grad[0]:
            scale = ctx.scale
            if scale is None:
                scale = weight * (var + ctx.eps).rsqrt()
            scale = scale.view(-1, *[1] * (x.ndim - 2))
            # out= does not support second derivatives
            dx = (
                (dy * scale).to(x.dtype)
                if torch.is_grad_enabled()
                else torch.mul(dy, scale, out=torch.empty_like(x))
            )
        if any(wanted := [bool(w) for w in ctx.needs_input_grad[3:5]]):
            _, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
                dy, x, weight, mean, var, None, None, False, ctx.eps, [False, *wanted]
            )
        return dx, None, None, dweight, dbias, None, None


class GroupedNorm(torch.autograd.Function):
    """Batch-norm of runs of consecutive images, written into one output, so that channels_last is
    kept.

    together: copy the channels of runs of equal size next to each other and normalise all runs at
    once. This costs two copies in each direction, but a GPU then launches a few large kernels
    instead of several small ones per run.
    Returns y, and mean and 1 / √(Var[x] + eps) of each group, [G, C] (for running statistics).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        rows: list[int],
        eps: float,
        together: bool,
    ) -> tuple[Tensor, ...]:
        if not x.is_contiguous() and not x.is_contiguous(memory_format=torch.channels_last):
            x = x.contiguous()  # for other layouts torch's out= does not write the mean
        y = torch.empty_like(x)
        ctx.rows = rows
        ctx.eps = eps
        ctx.together = together
        ctx.layout = (x.shape, x.stride())
        if together:
            groups = len(rows)
            x = _beside(x, groups).reshape(-1, groups * x.shape[1])
            scale = weight.repeat(groups)
            shift = bias.repeat(groups)
            made, *statistics = torch.native_batch_norm(x, scale, shift, None, None, True, 0.0, eps)
            mean, invstd = (found.view(groups, -1) for found in statistics)
            into = _beside(y, groups)
            into.copy_(made.view(into.shape))
        else:
            mean, invstd = (weight.new_empty(len(rows), x.shape[1]) for _ in range(2))
            parts = zip(torch.split(x, rows), torch.split(y, rows), mean, invstd, strict=True)
            for part, *out in parts:  # write in place: a copy would cost 50 % more
                _ = torch.native_batch_norm(
                    part, weight, bias, None, None, True, 0.0, eps, out=tuple(out)
                )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.mark_non_differentiable(mean, invstd)
        return y, mean, invstd

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        rows: list[int] = ctx.rows
        wanted = [bool(w) for w in ctx.needs_input_grad[:3]]
        dy = gradients[0]
        dx = dy.new_empty_strided(*ctx.layout) if wanted[0] else None
        back = torch.ops.aten.native_batch_norm_backward
        if ctx.together:
            groups = len(rows)
            gradient = _beside(dy, groups).reshape(x.shape)
            given = weight.repeat(groups), None, None, mean.flatten(), invstd.flatten()
            made, *found = back(gradient, x, *given, True, ctx.eps, wanted)
            if dx is not None:
                into = _beside(dx, groups)
                into.copy_(made.view(into.shape))
            dweight, dbias = (
                g.view(groups, -1).sum(0) if w else None
                for g, w in zip(found, wanted[1:], strict=True)
            )
            return dx, dweight, dbias, None, None, None
        dx_parts = torch.split(dx, rows) if dx is not None else [None] * len(rows)
        of_weight = []
        of_bias = []
        for g, (part, dpart, out) in enumerate(
            zip(torch.split(x, rows), torch.split(dy, rows), dx_parts, strict=True)
        ):
            dx_g, dw_g, db_g = back(
                dpart, part, weight, None, None, mean[g], invstd[g], True, ctx.eps, wanted
            )
            if out is not None:
                out.copy_(dx_g)
            of_weight.append(dw_g)
            of_bias.append(db_g)
        dweight = reduce(torch.add, of_weight) if wanted[1] else None
        return dx, dweight, reduce(torch.add, of_bias) if wanted[2] else None, None, None, None


def _beside(x: Tensor, groups: int) -> Tensor:
    """Return x [B, C, …] as [B / G, H·W, G, C]; a view if x is contiguous or channels_last."""
    return x.reshape(groups, -1, x.shape[1], x[0, 0].numel()).permute(1, 3, 0, 2)
