"""Views: which crops and colours a training step sees, drawn for the whole batch and made in batches on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hexa.data.view_config import ViewsConfig
from hexa.ops import geometry, photometric
from hexa.runtime.random import Stream

__all__ = ["EvaluationTransform", "Transform", "Views", "ViewsConfig", "evaluation_transform"]

# Columns of the uniform numbers that decide one view of one image.
_BOX = slice(0, geometry.UNIFORMS_PER_BOX)
_FLIP, _JITTER, _GRAYSCALE, _BLUR, _SOLARIZE, _SIGMA, _ORDER, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(
    _BOX.stop, _BOX.stop + 11
)
_COLUMNS = _BOX.stop + 11
# Floats worked on at a time: on a CPU what stays in cache is up to twice as fast, on a GPU memory is the only bound.
_CHUNK = {"cpu": 2**19, "cuda": 2**27}


class Views:
    """Makes the views of a batch, all parameters being functions of (stream, row of the image in the global batch).

    >>> crops = Views(ViewsConfig(size=32))(images, stream)      # images uint8 [B, 3, H, W] -> 2 × float [B, 3, 32,
    32] in [0, 1]
    """

    def __init__(self, config: ViewsConfig) -> None:
        self.config = config

    def __call__(self, images: Tensor, stream: Stream, rows: slice | None = None) -> tuple[Tensor, ...]:
        """The `num_views` views of `images` [B, 3, H, W] (uint8, or float in [0, 1]), on their device: float32 [B, 3,
        S, S] each.

        rows: where these images stand in the global batch (default: they are all of it), so that every process makes
        the views that one process would have made.
        """
        numbers = self.draw(stream, rows or slice(0, len(images)))  # [V, B, P]
        views, batch = self.config.num_views, len(images)
        height, width = images.shape[2:]
        boxes, flip = self.boxes(numbers.view(views * batch, _COLUMNS), height, width)
        packed = photometric.to_device(torch.stack((*boxes, flip.long())), images.device)  # [5, V·B]
        source = torch.arange(batch, device=images.device).repeat(views)
        size, out = self.config.size, []
        flat = numbers.view(views * batch, _COLUMNS)
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        for part in _chunks(views * batch, 3 * max(height * width, size * size), images.device):
            now = packed[:, part]
            cut = geometry.crop_resize(
                images.index_select(0, source[part]), geometry.Boxes(*now[:4]), size, now[4].bool()
            )
            out.append(self.recolor(cut.mul_(scale).contiguous(), flat[part]))
        return tuple(torch.cat(out).view(views, batch, 3, size, size).unbind())

    def finish(self, crops: Sequence[Tensor], stream: Stream, rows: slice | None = None) -> tuple[Tensor, ...]:
        """The colour half alone, for crops that a worker cut with `boxes`: V tensors [B, 3, S, S], uint8 or float in
        [0, 1].
        """
        numbers = self.draw(stream, rows or slice(0, len(crops[0])))
        return tuple(
            torch.cat(
                [
                    self.recolor(_unit(crop[part]), number[part])
                    for part in _chunks(len(crop), 3 * self.config.size**2, crop.device)
                ]
            )
            for crop, number in zip(crops, numbers, strict=True)
        )

    def draw(self, stream: Stream, rows: slice) -> Tensor:
        """The numbers in [0, 1) that decide everything about the views of these rows of the global batch: [V, rows, P].

        A row's numbers depend on the stream and on its place, not on the size of the batch.
        """
        shape = (rows.stop, self.config.num_views, _COLUMNS)
        numbers = torch.rand(shape, generator=stream.child("views").generator())
        return numbers[rows.start or 0 :].transpose(0, 1).contiguous()

    def boxes(self, numbers: Tensor, height: Tensor | int, width: Tensor | int) -> tuple[geometry.Boxes, Tensor]:
        """The crop boxes and flips [n] that `numbers` [n, P] decide for images of these heights and widths, on the
        CPU.
        """
        boxes = geometry.random_boxes(numbers[:, _BOX], height, width, self.config.scale, self.config.ratio)
        return boxes, numbers[:, _FLIP] < self.config.flip_probability

    def recolor(self, crops: Tensor, numbers: Tensor) -> Tensor:
        """Colour operations on crops [n, 3, S, S] in [0, 1], as `numbers` [n, P] decide, each on those it applies to.
        May overwrite.
        """
        for name in self.config.order:
            crops = getattr(self, f"_{name}")(crops, numbers)
        return crops

    def _jitter(self, crops: Tensor, numbers: Tensor) -> Tensor:
        config = self.config
        index = _chosen(numbers, _JITTER, config.jitter_probability)
        if not len(index) or not (config.brightness or config.contrast or config.saturation or config.hue):
            return crops
        chosen = numbers[index]

        def factor(column: int, strength: float) -> Tensor:
            low = max(0.0, 1 - strength)
            return low + (1 + strength - low) * chosen[:, column]

        jitter = photometric.Jitter(
            factor(_BRIGHTNESS, config.brightness),
            factor(_CONTRAST, config.contrast),
            factor(_SATURATION, config.saturation),
            config.hue * (2 * chosen[:, _HUE] - 1),
            (chosen[:, _ORDER] * len(photometric.ORDERS)).long(),
        )
        return _apply(crops, index, lambda some: photometric.color_jitter(some, jitter))

    def _grayscale(self, crops: Tensor, numbers: Tensor) -> Tensor:
        return _apply(crops, _chosen(numbers, _GRAYSCALE, self.config.grayscale_probability), photometric.grayscale)

    def _blur(self, crops: Tensor, numbers: Tensor) -> Tensor:
        index = _chosen(numbers, _BLUR, self.config.blur_probability)
        low, high = self.config.blur_sigma
        radius = photometric.blur_radius(high, self.config.size)
        if not len(index) or radius == 0:
            return crops
        sigma = photometric.to_device(low + (high - low) * numbers[index, _SIGMA], crops.device)
        return _apply(crops, index, lambda some: photometric.gaussian_blur(some, sigma, radius))

    def _solarize(self, crops: Tensor, numbers: Tensor) -> Tensor:
        return _apply(crops, _chosen(numbers, _SOLARIZE, self.config.solarize_probability), photometric.solarize)


def _chosen(numbers: Tensor, column: int, probability: float) -> Tensor:
    return (numbers[:, column] < probability).nonzero()[:, 0]


def _apply(crops: Tensor, index: Tensor, operation: Any) -> Tensor:
    """Apply an operation to some of the crops, in place unless it is all of them."""
    if len(index) == 0:
        return crops
    if len(index) == len(crops):
        return operation(crops).contiguous()  # type: ignore[no-any-return]
    index = photometric.to_device(index, crops.device)
    return crops.index_copy_(0, index, operation(crops.index_select(0, index)))


def _unit(crops: Tensor) -> Tensor:
    """A float copy in [0, 1]."""
    return crops.float().div_(255) if crops.dtype == torch.uint8 else crops.float().clone()


def _chunks(rows: int, floats_per_row: int, device: torch.device) -> list[slice]:
    step = max(1, _CHUNK.get(device.type, _CHUNK["cuda"]) // floats_per_row)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class Transform(Protocol):
    """What evaluation does to images: uint8 [..., 3, H, W] to uint8 [..., 3, S, S]."""

    size: int

    def __call__(self, images: Tensor) -> Tensor: ...


class EvaluationTransform:
    """The one view of an image that evaluation sees: uint8 [..., 3, H, W] to uint8 [..., 3, S, S] (REFERENCE §7.1,
    §10.15).

    Squares no larger than S are taken whole, as they are when they have S pixels (CIFAR at 32, STL-10 at 96) and else
    enlarged. Of all others the shorter side is resized to 256/224 · S and the centre S × S is cut. Bilinear,
    antialiased.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, images: Tensor) -> Tensor:
        single = images.ndim == 3
        batch = images[None] if single else images
        height, width = batch.shape[2:]
        if height == width <= self.size:
            out = _resize(batch, self.size, self.size)
        else:
            short = round(self.size * 256 / 224)
            resized_h = short if height <= width else int(short * height / width)
            resized_w = short if width <= height else int(short * width / height)
            top, left = round((resized_h - self.size) / 2), round((resized_w - self.size) / 2)
            out = _resize(batch, resized_h, resized_w)[:, :, top : top + self.size, left : left + self.size]
        return out[0] if single else out


def _resize(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[2:] == (height, width):
        return images
    floats = functional.interpolate(images.float(), (height, width), mode="bilinear", antialias=True)
    return floats.round_().clamp_(0, 255).to(torch.uint8)


def evaluation_transform(size: int) -> EvaluationTransform:
    """The transform of evaluation images for a network that takes `size` × `size` pixels."""
    return EvaluationTransform(size)
