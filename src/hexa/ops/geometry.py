"""Batched crops: two batched matrix products cut one box per image, resize it with antialiasing and
flip it.

Resizing is linear and separable, so a crop with its flip is `rows @ image @ columnsᵀ` with a small
matrix of filter weights per image and axis. At 32 px this costs about as much as a sampling grid,
which cannot antialias. For large views on a CPU, the zeros of these matrices are skipped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Boxes(NamedTuple):
    """One box per image in whole pixels, each an int64 tensor [B]."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


class Turns(NamedTuple):
    """Flips of square views, bool [B] each, applied in this order: horizontal, vertical,
    transposition.

    Together these give the eight symmetries of the square.
    """

    flip: Tensor
    upside_down: Tensor
    transposed: Tensor


Range = tuple[float, float]
#: Sizes that are tried for a box before the fallback.
TRIES = 10
#: Random numbers for a box: an area and a ratio per try, and a position.
UNIFORMS_PER_BOX = 2 * TRIES + 2
#: From this side of a view in pixels, sparse sums are faster on a CPU: three times at 224.
SPARSE = 64


def random_boxes(
    uniforms: Tensor,
    height: int,
    width: int,
    scale: Range = (0.08, 1.0),
    ratio: Range = (3 / 4, 4 / 3),
) -> Boxes:
    """Return boxes with the distribution of torchvision's RandomResizedCrop, for a batch (F20).

    Area share uniform in `scale`, log of width/height uniform in log `ratio`; the first of ten
    tries that fits into the image is used. If none fits, the box is the largest centred one whose
    ratio is within bounds. The position is uniform over all whole pixels at which the box fits.

    uniforms: [B, 22] independent numbers in [0, 1), the only source of randomness.
    height, width: of all images.
    Returns boxes on the device of `uniforms`.
    """
    uniforms = uniforms.double()
    # try ten areas and ratios
    share = scale[0] + (scale[1] - scale[0]) * uniforms[:, :TRIES]
    area = height * width * share  # [B, 10]
    low = math.log(ratio[0])
    high = math.log(ratio[1])
    aspect = (low + (high - low) * uniforms[:, TRIES : 2 * TRIES]).exp()
    tried_w = (area * aspect).sqrt().round()
    tried_h = (area / aspect).sqrt().round()
    fits = (tried_w > 0) & (tried_w <= width) & (tried_h > 0) & (tried_h <= height)
    # take the first that fits; otherwise cut the longer side to the nearest ratio, as torchvision
    first = fits.int().argmax(1, keepdim=True)  # the first of equal maxima
    any_fits = fits.gather(1, first)[:, 0]
    widest = min(width, round(height * ratio[1]))
    highest = min(height, round(width / ratio[0]))
    box_w = tried_w.gather(1, first)[:, 0].where(any_fits, widest)
    box_h = tried_h.gather(1, first)[:, 0].where(any_fits, highest)
    # place it at random, or in the middle if no try fits
    room_h = height - box_h
    room_w = width - box_w
    top = torch.where(any_fits, uniforms[:, -2] * (room_h + 1), room_h / 2)
    left = torch.where(any_fits, uniforms[:, -1] * (room_w + 1), room_w / 2)
    return Boxes(top.long(), left.long(), box_h.long(), box_w.long())


def scaled_boxes(
    uniforms: Tensor,
    height: int,
    width: int,
    size: int,
    magnification: Range,
    ratio: Range,
) -> Boxes:
    """Return boxes of size / m pixels, so that m pixels of the view show one of the image: log m
    uniform in `magnification`.

    If the image is too small for a part of the range, m is drawn from the rest; if it is too small
    for all of the range, the whole shorter side is taken. Log of width/height is uniform in log
    `ratio` at the same area, clipped to the image. The position is uniform over all whole pixels at
    which the box fits. Arguments and result as for `random_boxes`.
    """
    uniforms = uniforms.double()
    least = size / min(height, width)
    low, high = uniforms.new_tensor([max(least, bound) for bound in magnification]).log()
    side = size * (low + (high - low) * uniforms[:, 0]).neg().exp()
    flat = math.log(ratio[0])
    wide = math.log(ratio[1])
    stretch = (0.5 * (flat + (wide - flat) * uniforms[:, TRIES])).exp()
    box_h = (side / stretch).round().clamp(1, height)
    box_w = (side * stretch).round().clamp(1, width)
    top = uniforms[:, -2] * (height - box_h + 1)
    left = uniforms[:, -1] * (width - box_w + 1)
    return Boxes(top.long(), left.long(), box_h.long(), box_w.long())


def quarter_turned(
    flip: Tensor,
    upside_down: Tensor,
    quarters: Tensor,
) -> Turns:
    """Return these flips followed by `quarters` (0 to 3, [B]) counter-clockwise quarter turns, as
    torch.rot90."""
    half = quarters == 2
    flip = flip ^ (quarters == 1) ^ half
    upside_down = upside_down ^ (quarters == 3) ^ half
    return Turns(flip, upside_down, quarters % 2 == 1)


def resize_weights(
    start: Tensor,
    length: Tensor,
    extent: int,
    size: int,
    flip: Tensor | None,
) -> Tensor:
    """Return per image the matrix that resizes the pixels [start, start + length) of an axis to
    `size` pixels.

    Row i holds the triangle filter w_j ∝ max(0, 1 − |j + ½ − c_i| / max(s, 1)) with s = length /
    size, c_i = start + s·(i + ½), over the pixels j inside the box, normalised to sum 1: bilinear
    interpolation with antialiasing, as torchvision and PIL define it.

    start, length: [B].
    extent: pixels of the whole axis.
    flip: [B] bool, the images to mirror.
    Returns [B, size, extent].
    """
    center, support = _filters(start, length, size, flip)
    return _triangles(torch.arange(extent, device=start.device), center, support, start, length)


def resize_taps(
    start: Tensor,
    length: Tensor,
    extent: int,
    size: int,
    flip: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the nonzero entries of `resize_weights`: their columns, int64, and values, [B, size,
    K] each.

    K is the number for a box of the whole axis, whatever the boxes are, so an image's sums do not
    depend on other images.
    """
    center, support = _filters(start, length, size, flip)
    first = (center - support).floor().long()  # [B, size]
    taps = math.ceil(2 * max(1, extent / size)) + 1
    pixels = first[:, :, None] + torch.arange(taps)
    return pixels.clamp(0, extent - 1), _triangles(pixels, center, support, start, length)


def _filters(
    start: Tensor,
    length: Tensor,
    size: int,
    flip: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the centres c [B, size] of the filters, and their supports max(s, 1) [B, 1]."""
    out = torch.arange(size, device=start.device, dtype=torch.float32)
    step = length.float()[:, None] / size  # [B, 1]
    position = out if flip is None else torch.where(flip[:, None], size - 1 - out, out)
    return start.float()[:, None] + step * (position + 0.5), step.clamp(min=1)


def _triangles(
    pixels: Tensor,
    center: Tensor,
    support: Tensor,
    start: Tensor,
    length: Tensor,
) -> Tensor:
    """Return the weights [B, size, n] of pixels [n] or [B, size, n]."""
    middle = pixels.to(torch.float32) + 0.5
    distance = (middle - center[:, :, None]).abs_().mul_(support.reciprocal()[:, :, None])
    weights = distance.neg_().add_(1).clamp_(min=0)
    begin = start[:, None, None]
    end = (start + length)[:, None, None]
    weights *= (middle > begin) & (middle < end)
    return weights.div_(weights.sum(2, keepdim=True))


def crop_resize(
    images: Tensor,
    boxes: Boxes,
    size: int,
    flip: Tensor | None = None,
    upside_down: Tensor | None = None,
) -> Tensor:
    """Cut one box out of each image, resize it (bilinear, antialiased) and flip some: float [B, C,
    size, size].

    images: [B, C, H, W], uint8 or float; values keep their range.
    boxes: on the device of `images`.
    flip, upside_down: [B] bool.
    Equals torchvision's `resized_crop(..., antialias=True)`, `hflip` and `vflip` of each float
    image.
    """
    height, width = images.shape[2:]
    rows = (boxes.top, boxes.height, height, size, upside_down)
    columns = (boxes.left, boxes.width, width, size, flip)
    if size < SPARSE or images.device.type != "cpu":
        return separable(images, resize_weights(*rows), resize_weights(*columns))
    upright = images.permute(0, 2, 1, 3).to(torch.float32, memory_format=torch.contiguous_format)
    tall = _mixed(upright, *resize_taps(*rows))  # [B, size, C, W]
    return _mixed(tall.permute(0, 3, 2, 1), *resize_taps(*columns)).permute(0, 2, 3, 1)


def _mixed(
    table: Tensor,
    index: Tensor,
    weights: Tensor,
) -> Tensor:
    """Σ_k weights[b, i, k] · table[b, index[b, i, k]]: [B, n, …], index and weights [B, m, K] ->
    [B, m, …]."""
    batch, count, *rest = table.shape
    taps = index.shape[2]
    bags = (index + count * torch.arange(batch)[:, None, None]).view(-1, taps)
    # contiguous, so that the order of summation does not depend on the number of images
    flat = table.reshape(batch * count, -1).contiguous()
    weights = weights.view(-1, taps)
    mixed = functional.embedding_bag(bags, flat, per_sample_weights=weights, mode="sum")
    return mixed.view(batch, -1, *rest)


def separable(
    images: Tensor,
    rows: Tensor,
    columns: Tensor,
) -> Tensor:
    """Return rows @ image @ columnsᵀ of each image and channel, float32 [B, C, h, w].

    images: [B, C, H, W].
    rows: [B, h, H].
    columns: [B, w, W].
    """
    batch, channels, height, width = images.shape
    size = rows.shape[1]
    # with channels between height and width, each product is one matmul per image, without copies
    tall = images.permute(0, 2, 1, 3).to(torch.float32, memory_format=torch.contiguous_format)
    tall = torch.bmm(rows, tall.reshape(batch, height, channels * width))
    out = torch.bmm(tall.view(batch, size * channels, width), columns.transpose(1, 2))
    return out.view(batch, size, channels, columns.shape[1]).permute(0, 2, 1, 3)
