"""Views: which crops and colours a training step sees, drawn for the whole batch and made in batches on the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hexa.data.view_config import Group, ViewsConfig
from hexa.ops import geometry, photometric, randaugment
from hexa.runtime.random import Stream

__all__ = ["EvaluationTransform", "Transform", "Views", "ViewsConfig", "evaluation_transform"]

# Columns of the uniform numbers that decide one view of one image.
_BOX = slice(0, geometry.UNIFORMS_PER_BOX)
_FLIP, _JITTER, _GRAYSCALE, _BLUR, _SOLARIZE, _SIGMA, _ORDER, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(
    _BOX.stop, _BOX.stop + 11
)
_COLUMNS = _BOX.stop + 11  # those of RandAugment follow
# Floats worked on at a time: on a CPU what stays in cache is up to twice as fast, on a GPU memory is the only bound.
_CHUNK = {"cpu": 2**19, "cuda": 2**27}
#: How many times as long as wide an image may be to be resized whole before its centre is cut.
LONGEST = 16


class Views:
    """Makes the views of a batch, all parameters being functions of (stream, row of the image in the global batch).

    Views stand in the order of `ViewsConfig.groups`, those of one group together.

    >>> crops = Views(ViewsConfig(size=32))(images, stream)      # images uint8 [B, 3, H, W] -> 2 × float [B, 3, 32,
    32] in [0, 1]
    """

    def __init__(self, config: ViewsConfig) -> None:
        self.config, self.groups = config, config.groups

    @property
    def own(self) -> int:
        """How many views, the first, are of the image itself if a partner gives the others: half, rounded up."""
        return (self.config.total_views + 1) // 2

    def __call__(
        self, images: Tensor, stream: Stream, rows: slice | None = None, partners: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The views of `images` [B, 3, H, W], uint8 or float in [0, 1]: V float32 [B, 3, S_v, S_v] on their device.

        rows: where these images stand in the global batch (default: they are all of it), so that every process makes
        the views that one process would have made. partners: images [B, 3, H, W] that all views but the `own` ones are
        of. Pixels are float32 whatever the autocast of the caller.
        """
        numbers = self.draw(stream, rows or slice(0, len(images)))  # [V, B, P]
        crops: list[Tensor] = []
        with torch.autocast(images.device.type, enabled=False):
            for group, share in self.by_group(numbers):
                count = group.count if partners is None else max(0, self.own - len(crops))
                for shown, part in ((images, share[:count]), (partners, share[count:])):
                    if shown is not None and len(part):
                        crops += self._group(shown, part, group).unbind()
        return tuple(crops)

    def _group(self, images: Tensor, numbers: Tensor, group: Group) -> Tensor:
        """Views of one group, [count, B, 3, S, S], that `numbers` [count, B, P] decide."""
        count, batch, size = len(numbers), len(images), group.size
        height, width = images.shape[2:]
        flat = numbers.flatten(0, 1)
        boxes, flip = self.boxes(flat, height, width, group)
        packed = photometric.to_device(torch.stack((*boxes, flip.long())), images.device)  # [5, count·B]
        source = torch.arange(batch, device=images.device).repeat(count)
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        out = torch.empty((len(flat), 3, size, size), device=images.device)
        for part in _chunks(len(flat), 3 * max(height * width, size * size), images.device):
            chosen = images.index_select(0, source[part])
            cut = geometry.crop_resize(chosen, geometry.Boxes(*packed[:4, part]), size, packed[4, part].bool())
            self.recolor_(torch.mul(cut, scale, out=out[part]), flat[part], group)
        return out.view(count, batch, 3, size, size)

    def finish(self, crops: Sequence[Tensor], stream: Stream, rows: slice | None = None) -> tuple[Tensor, ...]:
        """The colour half alone, of V tensors of crops [B, 3, S_v, S_v] that a worker cut, uint8 or float in [0, 1]."""
        numbers = self.draw(stream, rows or slice(0, len(crops[0])))
        out = tuple(torch.empty(crop.shape, device=crop.device) for crop in crops)
        with torch.autocast(crops[0].device.type, enabled=False):
            groups = [group for group in self.groups for _ in range(group.count)]
            for crop, view, number, group in zip(crops, out, numbers, groups, strict=True):
                scale = 1 / 255 if crop.dtype == torch.uint8 else 1.0
                for part in _chunks(len(crop), crop.shape[1:].numel(), crop.device):
                    self.recolor_(torch.mul(crop[part], scale, out=view[part]), number[part], group)
        return out

    def draw(self, stream: Stream, rows: slice) -> Tensor:
        """The numbers in [0, 1) that decide everything about the views of these rows of the global batch: [V, rows, P].

        A row's numbers depend on the stream and on its place, not on the size of the batch; those of a group do not
        depend on the groups after it, so that a run with small crops sees the large ones of the run without; and what
        RandAugment needs comes last and from a stream of its own, so that a run with it sees the crops of the run
        without.
        """
        drawn = []
        for place, group in enumerate(self.groups):
            own = stream.child("views", place) if place else stream.child("views")
            numbers = torch.rand((rows.stop, group.count, _COLUMNS), generator=own.generator())
            if self.config.randaugment_ops:
                shape = (rows.stop, group.count, self.config.randaugment_ops * randaugment.UNIFORMS_PER_OPERATION)
                further = torch.rand(shape, generator=stream.child("randaugment", place).generator())
                numbers = torch.cat((numbers, further), 2)
            drawn.append(numbers[rows.start or 0 :].transpose(0, 1))
        return torch.cat(drawn)

    def by_group(self, numbers: Tensor) -> Iterator[tuple[Group, Tensor]]:
        """Each group with its share [count, …] of the numbers [V, …] of all views."""
        shares = torch.split(numbers, [group.count for group in self.groups])
        return zip(self.groups, shares, strict=True)

    def boxes(
        self, numbers: Tensor, height: Tensor | int, width: Tensor | int, group: Group
    ) -> tuple[geometry.Boxes, Tensor]:
        """The crop boxes and flips [n], on the CPU, that `numbers` [n, P] decide for images of these sizes."""
        boxes = geometry.random_boxes(numbers[:, _BOX], height, width, group.scale, self.config.ratio)
        return boxes, numbers[:, _FLIP] < self.config.flip_probability

    def recolor_(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        """Colour operations in place on crops [n, 3, S, S] of a group, as `numbers` [n, P] decide, each on its share.

        Pixels are in [0, 1].
        """
        for name in self.config.order:
            getattr(self, f"_{name}")(crops, numbers, group)

    def _jitter(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        config = self.config
        index = _chosen(numbers, _JITTER, config.jitter_probability)
        if not len(index) or not (config.brightness or config.contrast or config.saturation or config.hue):
            return
        jitter = self._jitter_of(numbers[index])
        by_turn = photometric.hue_turn(jitter).argsort(stable=True)  # spares the jitter from sorting images itself
        jitter = jitter.select(by_turn)
        _apply_(crops, index[by_turn], lambda some: photometric.color_jitter(some, jitter))

    def _jitter_of(self, numbers: Tensor) -> photometric.Jitter:
        config = self.config

        def factor(column: int, strength: float) -> Tensor:
            low = max(0.0, 1 - strength)
            return low + (1 + strength - low) * numbers[:, column]

        return photometric.Jitter(
            factor(_BRIGHTNESS, config.brightness),
            factor(_CONTRAST, config.contrast),
            factor(_SATURATION, config.saturation),
            config.hue * (2 * numbers[:, _HUE] - 1),
            (numbers[:, _ORDER] * len(photometric.ORDERS)).long(),
        )

    def _grayscale(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        _apply_(crops, _chosen(numbers, _GRAYSCALE, self.config.grayscale_probability), photometric.grayscale)

    def _blur(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        index = _chosen(numbers, _BLUR, group.blur_probability)
        low, high = self.config.blur_sigma
        radius = photometric.blur_radius(high, crops.shape[-1])
        if len(index) and radius:
            sigma = photometric.to_device(low + (high - low) * numbers[index, _SIGMA], crops.device)
            _apply_(crops, index, lambda some: photometric.gaussian_blur(some, sigma, radius))

    def _solarize(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        _apply_(crops, _chosen(numbers, _SOLARIZE, group.solarize_probability), photometric.solarize)

    def _randaugment(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        config = self.config
        if not config.randaugment_ops:
            return
        for uniforms in torch.split(numbers[:, _COLUMNS:], randaugment.UNIFORMS_PER_OPERATION, 1):
            plan = randaugment.plan(uniforms, config.randaugment_magnitude, config.randaugment_magnitude_std)
            _apply_(crops, plan.rows, functools.partial(randaugment.apply, chosen=plan))


def _chosen(numbers: Tensor, column: int, probability: float) -> Tensor:
    return (numbers[:, column] < probability).nonzero()[:, 0]


def _apply_(crops: Tensor, index: Tensor, operation: Callable[[Tensor], Tensor]) -> None:
    """Apply an operation to the crops of an index list on the CPU, in place."""
    if len(index):
        index = photometric.to_device(index, crops.device)
        crops.index_copy_(0, index, operation(crops.index_select(0, index)))


def _chunks(rows: int, floats_per_row: int, device: torch.device) -> list[slice]:
    step = max(1, _CHUNK.get(device.type, _CHUNK["cuda"]) // floats_per_row)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class Transform(Protocol):
    """What evaluation does to images: uint8 [..., 3, H, W] to uint8 [..., 3, S, S]."""

    size: int

    def __call__(self, images: Tensor) -> Tensor: ...


class EvaluationTransform:
    """The one view of an image that evaluation sees (REFERENCE §7.1, §10.15).

    Takes uint8 [..., 3, H, W] to uint8 [..., 3, S, S]. Squares no larger than S are taken whole, as they are if they
    have S pixels (CIFAR at 32, STL-10 at 96) and else enlarged. Of others the shorter side is resized to S / crop and
    the centre S × S is cut: 256 and 224 as published. Bilinear or bicubic, antialiased. Where one side is more than 16
    times the other only that centre is computed, since such strips would grow to gigabytes; its pixels are those of the
    strip resized whole but for a grey level of rounding, or two (bicubic).
    """

    def __init__(self, size: int, crop: float = 224 / 256, interpolation: str = "bilinear") -> None:
        self.size, self.crop, self.interpolation = size, crop, interpolation

    @property
    def short(self) -> int:
        """Pixels of the shorter side before the cut."""
        return round(self.size / self.crop)

    def takes_whole(self, height: int, width: int) -> bool:
        """Whether nothing is cut from images of this size."""
        return height == width <= self.size

    def __call__(self, images: Tensor) -> Tensor:
        single = images.ndim == 3
        batch = images[None] if single else images
        height, width = batch.shape[2:]
        if self.takes_whole(height, width):
            out = resize(batch, self.size, self.size, self.interpolation)
        else:
            short = self.short
            resized_h = short if height <= width else int(short * height / width)
            resized_w = short if width <= height else int(short * width / height)
            top, left = round((resized_h - self.size) / 2), round((resized_w - self.size) / 2)
            if max(height, width) > LONGEST * min(height, width):
                above, rows = _part(height, resized_h, top, self.size, self.interpolation)
                beside, columns = _part(width, resized_w, left, self.size, self.interpolation)
                part = batch[:, :, above, beside].float()
                wide = (part @ columns.T.to(part.device)).round_().clamp_(0, 255)  # as where bytes are resized
                out = (rows.to(part.device) @ wide).round_().clamp_(0, 255).to(torch.uint8)
            else:
                resized = resize(batch, resized_h, resized_w, self.interpolation)
                out = resized[:, :, top : top + self.size, left : left + self.size]
        return out[0] if single else out


def _part(extent: int, resized: int, first: int, count: int, interpolation: str) -> tuple[slice, Tensor]:
    """Which pixels of an axis decide pixels first … first + count − 1 of the axis resized, and their weights.

    The weights [count, pixels] are w(|x − c| / s), normalised, of a pixel at x for one of the result at c, with
    s = max(extent / resized, 1). Bilinear: w(d) = 1 − d up to 1. Bicubic: (3d³ − 5d² + 2) / 2 up to 1 and
    (−d³ + 5d² − 8d + 4) / 2 up to 2.
    """
    step = extent / resized
    scale, reach = max(step, 1.0), 2 if interpolation == "bicubic" else 1
    centers = (torch.arange(first, first + count, dtype=torch.float64) + 0.5) * step
    low = max(0, math.floor(float(centers[0]) - reach * scale))
    high = min(extent, math.ceil(float(centers[-1]) + reach * scale))
    distance = (torch.arange(low, high, dtype=torch.float64) + 0.5 - centers[:, None]).abs_() / scale  # [count, pixels]
    if interpolation == "bicubic":
        near, far = 3 * distance**3 - 5 * distance**2 + 2, -(distance**3) + 5 * distance**2 - 8 * distance + 4
        weights = torch.where(distance < 1, near, far).where(distance < 2, 0)
    else:
        weights = (1 - distance).clamp_(min=0)
    return slice(low, high), (weights / weights.sum(1, keepdim=True)).float()


def resize(images: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """uint8 [B, 3, H, W] -> [B, 3, height, width], antialiased."""
    if images.shape[2:] == (height, width):
        return images
    if images.device.type == "cpu":  # on bytes four times as fast, and nearer to PIL, which published codes resize with
        return functional.interpolate(images, (height, width), mode=interpolation, antialias=True)
    floats = functional.interpolate(images.float(), (height, width), mode=interpolation, antialias=True)
    return floats.round_().clamp_(0, 255).to(torch.uint8)


def evaluation_transform(size: int) -> EvaluationTransform:
    """The transform of evaluation images for a network that takes `size` × `size` pixels."""
    return EvaluationTransform(size)
