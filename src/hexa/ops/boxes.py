"""Boxes of cut-mix."""

from __future__ import annotations

import torch
from torch import Tensor


def cut_boxes(
    shares: Tensor,
    size: int,
    inside: bool,
    generator: torch.Generator,
) -> Tensor:
    """Return boxes [n, 4] = (top, bottom, left, right) to paste into square images of side S =
    `size`, for λ0 = `shares` [n].

        cut = ⌊S·√(1 − λ0)⌋, half = ⌊cut / 2⌋

    inside false: the centre is uniform in [0, S)² and a box of side 2·half is clipped at the
    borders, so that λ = 1 − area/S² is larger than λ0 on average.
    inside true: a box of side `cut`, its corner uniform in [0, S − cut]².
    Source: F15, D12. Integers on the CPU.
    """
    side = size * (1 - shares.double()).clamp(0, 1).sqrt()
    cut = side.floor().long()[:, None]  # [n, 1]
    draw = torch.rand(len(shares), 2, generator=generator, dtype=torch.float64)
    if inside:
        low = (draw * (size - cut + 1)).floor().long().clamp(max=size)
        return _box(low, low + cut)
    centre = (draw * size).floor().long()
    half = cut // 2
    return _box((centre - half).clamp(0, size), (centre + half).clamp(0, size))


def _box(low: Tensor, high: Tensor) -> Tensor:
    """Boxes [n, 4] = (top, bottom, left, right) from corners [n, 2] (y, x)."""
    return torch.stack([low, high], 2).flatten(1)


def kept_share(boxes: Tensor, size: int) -> Tensor:
    """λ = 1 − area/S² of boxes [n, 4] in images of side `size`; float32 [n]."""
    top, bottom, left, right = boxes.unbind(1)
    area = (bottom - top) * (right - left)
    return (1 - area.double() / size**2).float()


def paste(
    images: Tensor,
    permutation: Tensor,
    boxes: Tensor,
) -> Tensor:
    """x_cmx = M∘x + (1 − M)∘x[permutation]: copy images [B, 3, S, S] and fill each box from the
    partner.

    boxes: [1, 4], one for all images, or [B, 4]; (top, bottom, left, right). The memory format is
    kept.
    """
    return torch.where(_within(boxes, images), images[permutation], images)


def cut_out(
    images: Tensor,
    centres: Tensor,
    side: int,
    fill: float,
) -> Tensor:
    """Return images [B, 3, S, S] with a filled square of 2·⌊side/2⌋ pixels around centres [B, 2]
    (y, x; integers, CPU).

    The square is clipped at the borders (Cutout, DeVries & Taylor 2017).
    """
    half = side // 2
    boxes = _box(centres - half, centres + half)
    return images.masked_fill(_within(boxes, images), fill)


def _within(boxes: Tensor, images: Tensor) -> Tensor:
    """Return the pixels of images [B, 3, S, S] that are inside the boxes [B or 1, 4], as bool [B or
    1, 1, S, S]."""
    boxes = boxes.to(images.device, non_blocking=True)
    top, bottom, left, right = boxes[:, :, None].unbind(1)  # [B, 1] each
    along = torch.arange(images.shape[-1], device=images.device)
    rows = (along >= top) & (along < bottom)
    columns = (along >= left) & (along < right)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def draw_beta(
    alpha: float,
    beta: float,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Return `count` draws of Beta(α, β), float64 [count]: X/(X + Y) for X ~ Gamma(α), Y ~
    Gamma(β).

    torch.distributions.Beta does not accept a generator.
    """
    shapes = torch.tensor([alpha, beta], dtype=torch.float64).repeat(count, 1)
    gamma = torch._standard_gamma(shapes, generator=generator)
    total = gamma.sum(1)
    # for tiny α and β both can underflow to 0; the mean replaces the undefined ratio
    return torch.where(total > 0, gamma[:, 0] / total, alpha / (alpha + beta))
