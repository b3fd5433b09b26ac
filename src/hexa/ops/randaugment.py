"""RandAugment in batches: fifteen operations with separate parameters per image, drawn per image.

Images are float [B, 3, H, W] in [0, 1] and stay in this range. The published operations work on
PIL's 256 levels. Here the operations that depend on a pixel's level (equalize, posterize, both
solarizes) use the nearest level; all others do not round, so that results differ from PIL's only by
rounding. Every function returns a new tensor. Not differentiable.

Operations, probabilities and ranges are those of timm's `rand-m…-n…-mstd…` (Cubuk et al. 2020 with
the details of the TPU code). There a larger magnitude is not always stronger: at 10 posterize keeps
four bits and solarize does nothing. One difference: geometric operations always interpolate
linearly; timm draws linear or cubic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2 import functional as colours

from hexa.ops import photometric
from hexa.runtime.precision import to_device

#: Random numbers per operation: applied or not, choice of operation, magnitude, sign.
UNIFORMS_PER_OPERATION = 4
#: Probability that a drawn operation is applied.
PROBABILITY = 0.5
#: Maximum magnitude; larger ones are clipped.
HIGHEST = 10.0
#: Grey value for pixels that a moved image leaves empty, in [0, 1].
FILL = 128 / 255
#: The highest of the 256 levels.
_TOP = 255


def equalize(images: Tensor) -> Tensor:
    """Equalise the histogram of each channel at 256 levels, as PIL's `equalize`."""
    levels = images.mul(_TOP).round_().to(torch.uint8)
    made: Tensor = colours.equalize(levels)
    return made.to(images.dtype).div_(_TOP)


def posterize(
    images: Tensor,
    bits: Tensor,
) -> Tensor:
    """Keep the `bits` [B] most significant bits of each 8-bit level, 0 (black) to 8."""
    unit = photometric.per_image(torch.exp2(8 - bits))
    return images.mul(_TOP).round_().div_(unit).floor_().mul_(unit).div_(_TOP)


def solarize(
    images: Tensor,
    threshold: Tensor,
) -> Tensor:
    """Return 1 − x for levels from `threshold` [B] upwards, 0 to 256."""
    bright = images * _TOP >= photometric.per_image(threshold) - 0.5
    return torch.where(bright, 1 - images, images)


def solarize_add(
    images: Tensor,
    addition: Tensor,
) -> Tensor:
    """Return min(1, x + a) for levels below 128; a = `addition` [B] in units of 1/255."""
    brighter = (images + photometric.per_image(addition / _TOP)).clamp_(max=1)
    return torch.where(images * _TOP < 127.5, brighter, images)


def sharpen(
    images: Tensor,
    factor: Tensor,
) -> Tensor:
    """clip(f · x + (1 − f) · s), s the mean of 3 × 3 pixels with weight 5 in the centre; border
    pixels do not change.

    factor: f, [B].
    """
    out = images.clone()
    if min(images.shape[2:]) > 2:
        inner = images[:, :, 1:-1, 1:-1]
        smooth = functional.avg_pool2d(images, 3, 1).mul_(9 / 13).add_(inner, alpha=4 / 13)
        sharp = torch.lerp(smooth, inner, photometric.per_image(factor))
        out[:, :, 1:-1, 1:-1] = sharp.clamp_(0, 1)
    return out


def affine(
    images: Tensor,
    matrix: Tensor,
) -> Tensor:
    """Pixel q becomes the image's value at A (q, 1), interpolated linearly; FILL outside of the
    image.

    matrix: A per image, [B, 2, 3], in coordinates (x to the right, y down) in which the image is
    the square from −1 to 1. As in PIL, pixels within half a pixel of the border are not mixed with
    the outside.
    """
    high, wide = images.shape[2:]
    x = (torch.arange(wide, device=images.device) * 2 + 1).div(wide).sub_(1)  # [W]
    y = (torch.arange(high, device=images.device) * 2 + 1).div(high).sub_(1)[:, None]  # [H, 1]
    # not affine_grid: the precision of its matrix product may be too low
    across, down, shift = (matrix[:, :, None, None, part] for part in range(3))  # [B, 2, 1, 1]
    seen = (across * x + down * y + shift).permute(0, 2, 3, 1)  # [B, H, W, 2]
    inside = ((seen >= -1) & (seen < 1)).all(3)[:, None]
    made = functional.grid_sample(
        images, seen, mode="bilinear", padding_mode="border", align_corners=False
    )
    return made.masked_fill_(~inside, FILL)


def rotation(degrees: Tensor) -> tuple[Tensor | float, ...]:
    """Return the matrix, row by row, that rotates square images counter-clockwise around their
    centre. degrees: [B]."""
    angle = degrees.deg2rad()
    return angle.cos(), -angle.sin(), 0.0, angle.sin(), angle.cos(), 0.0


Apply = Callable[[Tensor, Tensor], Tensor]
"""Maps images [n, 3, H, W] and magnitudes [n] from −1 to 1, with a random sign, to images."""


def _plain(operation: Callable[[Tensor], Tensor]) -> Apply:
    """Return an operation that ignores the magnitude."""
    return lambda images, _: operation(images)


def _graded(
    operation: Apply,
    most: float,
) -> Apply:
    """Return an operation whose argument is an integer from 0 to `most`."""
    return lambda images, signed: operation(images, (most * signed.abs()).floor())


def _blended(operation: Apply) -> Apply:
    """Return an operation whose factor is between 0.1 and 1.9."""
    return lambda images, signed: operation(images, 0.1 + 1.8 * signed.abs())


def _moved(
    matrix: Callable[[Tensor], tuple[Tensor | float, ...]],
    most: float,
) -> Apply:
    """Return the affine map whose matrix, row by row, is a function of a value between −most and
    most."""

    def move(
        images: Tensor,
        signed: Tensor,
    ) -> Tensor:
        # numbers become tensors on the device
        entries = [entry + 0 * signed for entry in matrix(most * signed)]
        return affine(images, torch.stack(entries, 1).view(-1, 2, 3))

    return move


OPERATIONS: dict[str, Apply] = {
    "autocontrast": _plain(colours.autocontrast),
    "equalize": _plain(equalize),
    "invert": _plain(colours.invert),
    "posterize": _graded(posterize, 4),
    "solarize": _graded(solarize, 256),
    "solarize-add": _graded(solarize_add, 110),
    "colour": _blended(photometric.adjust_saturation),
    "contrast": _blended(photometric.adjust_contrast),
    "brightness": _blended(photometric.adjust_brightness),
    "sharpness": _blended(sharpen),
    "rotate": _moved(rotation, 30.0),
    # shift each row left by this share of its distance from the top, and columns up likewise
    "shear-x": _moved(lambda share: (1.0, share, share, 0.0, 1.0, 0.0), 0.3),
    "shear-y": _moved(lambda share: (1.0, 0.0, 0.0, share, 1.0, share), 0.3),
    # shift left by this share of the width, up by this share of the height
    "translate-x": _moved(lambda share: (1.0, 0.0, 2 * share, 0.0, 1.0, 0.0), 0.45),
    "translate-y": _moved(lambda share: (1.0, 0.0, 0.0, 0.0, 1.0, 2 * share), 0.45),
}
"""The operations by name; all are equally likely."""


class DrawnOperations(NamedTuple):
    """One operation per image, on the CPU, sorted by operation.

    rows: indices of the n images to change.
    operation: index into OPERATIONS, [n].
    signed: magnitudes divided by 10 with a random sign, [n].
    """

    rows: Tensor
    operation: Tensor
    signed: Tensor


def plan(
    uniforms: Tensor,
    magnitude: float | None,
    std: float,
) -> DrawnOperations:
    """Draw for each image one of the fifteen operations, applied with probability ½, and its
    magnitude.

    The magnitude is normal with mean `magnitude` and standard deviation `std`, clipped to [0, 10];
    if `magnitude` is None, it is uniform in [0, 10]. Geometric operations use its random sign.
    uniforms: [B, 4] independent numbers in [0, 1) on the CPU, the only source of randomness.
    """
    rows = (uniforms[:, 0] < PROBABILITY).nonzero()[:, 0]
    operation = (uniforms[rows, 1] * len(OPERATIONS)).long()
    operation, by_operation = operation.sort(stable=True)
    rows = rows[by_operation]
    strength = uniforms[rows, 2]
    if magnitude is not None:
        # randn depends on the number of draws; the smallest uniform number above 0 is 2⁻²⁴
        normal = torch.special.ndtri(strength.clamp(min=2**-25))
        strength = (magnitude + std * normal).clamp(0, HIGHEST) / HIGHEST
    signed = torch.where(uniforms[rows, 3] < 0.5, -strength, strength)
    return DrawnOperations(rows, operation, signed)


def apply(
    images: Tensor,
    chosen: DrawnOperations,
) -> Tensor:
    """Apply a plan to its images, [n, 3, H, W] in the order of its rows, without synchronising with
    the device."""
    signed = to_device(chosen.signed, images.device)
    counts = chosen.operation.bincount(minlength=len(OPERATIONS)).tolist()
    out = torch.empty_like(images)
    start = 0
    for operation, count in zip(OPERATIONS.values(), counts, strict=True):
        if count:
            part = slice(start, start + count)
            out[part] = operation(images[part], signed[part])
            start += count
    return out


def augment_(
    images: Tensor,
    uniforms: Tensor,
    magnitude: float | None,
    std: float = 0.0,
) -> None:
    """Apply n operations, one after another, in place to images [B, 3, H, W]. uniforms: [B, n · 4],
    as for `plan`."""
    for numbers in torch.split(uniforms, UNIFORMS_PER_OPERATION, 1):
        chosen = plan(numbers, magnitude, std)
        if len(chosen.rows):
            rows = to_device(chosen.rows, images.device)
            images.index_copy_(0, rows, apply(images.index_select(0, rows), chosen))
