"""Batched colour operations with separate parameters per image; for each image they equal
torchvision's.

Images are float [B, 3, H, W] in [0, 1], contiguous (per-channel arithmetic is up to five times
slower in channels_last). They stay in [0, 1]: each operation clips, as torchvision does between the
parts of a colour jitter. Every function returns a new tensor. Pass only the images to change, so
that an operation of probability ½ costs half. Not differentiable.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from hexa.ops.geometry import separable
from hexa.runtime.precision import to_device

#: Weights of red, green and blue for luma.
LUMA = (0.2989, 0.587, 0.114)
#: The orders of a colour jitter's four operations.
ORDERS = tuple(itertools.permutations(range(4)))
#: Position of each operation in each order, [24, 4].
_PLACE = torch.tensor(ORDERS).argsort(1)
#: Index of hue among brightness, contrast, saturation and hue.
_HUE = 3


def per_image(values: Tensor) -> Tensor:
    """[B] -> [B, 1, 1, 1], to combine with images."""
    return values.view(-1, 1, 1, 1)


def luma(images: Tensor) -> Tensor:
    """0.2989 R + 0.587 G + 0.114 B, [B, 1, H, W]; the mean of the channels if there are not
    three."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    gray = images[:, :1] * LUMA[0]
    gray.add_(images[:, 1:2], alpha=LUMA[1])
    return gray.add_(images[:, 2:], alpha=LUMA[2])


def grayscale(images: Tensor) -> Tensor:
    """Return the luma in all three channels."""
    return luma(images).expand_as(images)


def adjust_brightness(
    images: Tensor,
    factor: Tensor,
) -> Tensor:
    """clip(f · x). factor: [B]."""
    return images.mul(per_image(factor)).clamp_(0, 1)


def adjust_contrast(
    images: Tensor,
    factor: Tensor,
) -> Tensor:
    """clip(f · x + (1 − f) · mean of the image's luma). factor: [B]."""
    level = luma(images).mean((1, 2, 3), keepdim=True)
    return torch.lerp(level, images, per_image(factor)).clamp_(0, 1)


def adjust_saturation(
    images: Tensor,
    factor: Tensor,
) -> Tensor:
    """clip(f · x + (1 − f) · luma). factor: [B]."""
    return torch.lerp(luma(images), images, per_image(factor)).clamp_(0, 1)


def adjust_hue(
    images: Tensor,
    shift: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Shift the hue by `shift` [B] of the full circle, in [−½, ½]; HSV value and saturation do not
    change.

    With V = max, C = max − min, r = (R − min)/C, d = (G − B)/C, the hue in sixths of the circle is
    h = ±(2 − r + (1 − |d|)(1 − 2r)) with the sign of d: one formula for all six sectors. The
    colours of a hue h in [0, 6) are R = V − C·clip(2 − |h − 3|), G = V − C·clip(|h − 2| − 1), B = V
    − C·clip(|h − 4| − 1), with clip to [0, 1]. Without comparisons, cases or the saturation this is
    three times as fast as converting to HSV and back.
    out: tensor for the result; may be `images`.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(red, green)  # [B, H, W]
    torch.maximum(value, blue, out=value)
    low = torch.minimum(red, green)
    torch.minimum(low, blue, out=low)
    chroma = value - low
    # the hue of grey pixels does not matter
    work = chroma.clamp(min=torch.finfo(images.dtype).tiny).reciprocal_()
    share = torch.sub(red, low, out=low).mul_(work)  # r
    side = (green - blue).mul_(work)  # d
    hue = side.abs().sub_(1)
    hue.addcmul_(hue, share, value=-2).add_(share).neg_().add_(2)
    hue.copysign_(side).add_(shift.mul(6).view(-1, 1, 1))
    hue.sub_(torch.div(hue, 6, out=work).floor_(), alpha=6)
    turned = torch.empty_like(images) if out is None else out
    weight = torch.sub(hue, 3, out=work).abs_().neg_().add_(2).clamp_(0, 1)
    torch.addcmul(value, chroma, weight, value=-1, out=turned[:, 0])
    for channel, middle in ((1, 2), (2, 4)):
        weight = torch.sub(hue, middle, out=work).abs_().sub_(1).clamp_(0, 1)
        torch.addcmul(value, chroma, weight, value=-1, out=turned[:, channel])
    return turned


class Jitter(NamedTuple):
    """The parameters of a colour jitter for a batch, all [B] on the CPU.

    brightness, contrast, saturation: factors.
    hue: shift in turns.
    order: int64 in 0 … 23, lexicographic rank of the image's permutation of (brightness, contrast,
    saturation, hue).
    """

    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    order: Tensor

    def select(
        self,
        index: Tensor,
    ) -> Jitter:
        """Return the parameters of some of the images."""
        return Jitter(*(value[index] for value in self))


def hue_turn(jitter: Jitter) -> Tensor:
    """Return the position of hue in each image's order: 0, 1, 2 or 3, [B] on the CPU."""
    return _PLACE[jitter.order, _HUE]


def color_jitter(
    images: Tensor,
    jitter: Jitter,
) -> Tensor:
    """Apply brightness, contrast, saturation and hue, clipped after each, in a separate order per
    image (F20).

    The first three are all clip(a·x + b·luma(x) + c·mean luma(x)), so three such steps serve the
    whole batch in any order. Before, between and after these steps, the hue changes in the images
    whose order puts it there. Images must be sorted by `hue_turn`, so that these images are
    neighbours. Parameters are on the CPU and are copied to the device once; nothing is read back.
    If images do not have three channels, hue does not apply and saturation is not allowed.
    """
    turns = hue_turn(jitter)
    out = images.clone(memory_format=torch.contiguous_format)
    assert bool((turns.diff() >= 0).all()), "images must be sorted by hue_turn"
    # the step of each operation, not counting hue
    place = _PLACE[jitter.order][:, :_HUE]  # [B, 3]
    step = place - (place > turns[:, None]).long()  # [B, 3]
    # coefficients a, b and c of each step: contrast mixes with the mean luma, saturation with luma
    coefficients = torch.zeros(3, 3, len(out))  # [step, (a, b, c), B]
    rows = torch.arange(len(out))
    coefficients[step[:, 0], 0, rows] = jitter.brightness
    coefficients[step[:, 1], 0, rows] = jitter.contrast
    coefficients[step[:, 1], 2, rows] = 1 - jitter.contrast
    coefficients[step[:, 2], 0, rows] = jitter.saturation
    coefficients[step[:, 2], 1, rows] = 1 - jitter.saturation
    packed = to_device(torch.cat((coefficients.view(9, -1), jitter.hue[None])), out.device)
    start = 0
    for turn, count in enumerate(turns.bincount(minlength=4).tolist()):
        # shift the hue of the images whose order puts it here
        if count and out.shape[1] == 3:
            part = slice(start, start + count)
            adjust_hue(out[part], packed[9, part], out[part])
            start += count
        # clip(a·x + b·luma + c·mean luma)
        if turn < 3:
            a, b, c = map(per_image, packed[3 * turn : 3 * turn + 3])
            blend = luma(out)
            offset = blend.mean((1, 2, 3), keepdim=True).mul_(c)
            torch.addcmul(offset, blend, b, out=blend)
            torch.addcmul(blend, out, a, out=out).clamp_(0, 1)
    return out


def blur_radius(
    sigma: float,
    size: int,
) -> int:
    """Return the radius of a blur kernel: ⌈3 σ⌉ pixels (0.3 % of the weight is beyond), below
    `size`.

    The published σ of at most 2 pixels give 13 taps (F20).
    """
    return min(math.ceil(3 * sigma), size - 1)


def gaussian_blur(
    images: Tensor,
    sigma: Tensor,
    radius: int,
) -> Tensor:
    """Separable Gaussian blur with a standard deviation per image, `sigma` [B] in pixels, and
    reflected borders.

    w_k ∝ exp(−k² / 2σ²), |k| ≤ radius < min(H, W), normalised to sum 1: torchvision's
    `gaussian_blur` with kernel 2·radius + 1. Each axis is one product with a band matrix per image
    that includes the reflection.
    """
    height, width = images.shape[2:]
    offset = torch.arange(-radius, radius + 1, device=images.device, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offset / sigma[:, None]).square())  # [B, K]
    kernel /= kernel.sum(1, keepdim=True)
    rows = _band(kernel, radius, height)
    return separable(images, rows, rows if width == height else _band(kernel, radius, width))


def _band(
    kernel: Tensor,
    radius: int,
    size: int,
) -> Tensor:
    """[B, size, size]: row i holds the kernel around i, reflected at the border pixels."""
    at = torch.arange(size, device=kernel.device)
    offset = torch.arange(-radius, radius + 1, device=kernel.device)
    seen = (at[None, :, None] + offset[:, None, None]).abs()  # [K, size, 1]
    seen = torch.minimum(seen, 2 * (size - 1) - seen)
    hits = (seen == at).to(kernel.dtype)  # [K, size, size]
    return (kernel @ hits.view(len(hits), -1)).view(-1, size, size)


def solarize(
    images: Tensor,
    threshold: float = 0.5,
) -> Tensor:
    """Return 1 − x for pixels x ≥ threshold, otherwise x."""
    return torch.where(images >= threshold, 1 - images, images)


#: Optical densities of haematoxylin, eosin and DAB in red, green and blue, one stain per row
#: (Ruifrok and Johnston 2001).
STAINS = torch.tensor([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])


def stain_jitter(
    images: Tensor,
    factor: Tensor,
    shift: Tensor,
) -> Tensor:
    """Change each stain's amount s to a·s + b in RGB images of histological sections.

    With optical densities −ln x = s·M, where the rows of M are STAINS, x' = clip(exp(−(a∘s + b)·M))
    (Tellez et al. 2018, doi 10.1109/TMI.2018.2820199). x is clipped to at least 10⁻⁶.
    factor, shift: a, b, [B, 3] on the CPU.
    """
    mix = STAINS.inverse() @ (factor[:, :, None] * STAINS)  # [B, 3, 3], from densities to densities
    packed = to_device(torch.cat((mix, (shift @ STAINS)[:, None]), 1), images.device)
    density = images.clamp(min=1e-6).log_().flatten(2)  # negative: −s·M
    out = torch.baddbmm(packed[:, 3, :, None], packed[:, :3].transpose(1, 2), density, beta=-1)
    return out.exp_().clamp_(0, 1).view_as(images)
