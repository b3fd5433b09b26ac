"""Makes the views of a training step: crops and colours, in batches on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hexa.data.views.config import Group, ViewsConfig
from hexa.ops import geometry, photometric, randaugment
from hexa.runtime.precision import to_device
from hexa.runtime.random import Stream

__all__ = ["Views", "ViewsConfig"]

# Columns of the uniform random numbers of one view of one image.
_BOX = slice(0, geometry.UNIFORMS_PER_BOX)
(
    _FLIP,
    _JITTER,
    _GRAYSCALE,
    _BLUR,
    _SOLARIZE,
    _SIGMA,
    _ORDER,
    _BRIGHTNESS,
    _CONTRAST,
    _SATURATION,
    _HUE,
) = range(_BOX.stop, _BOX.stop + 11)
_COLUMNS = _BOX.stop + 11
# Further columns for turns and stain jitter; columns of RandAugment come last.
_UPSIDE_DOWN, _TURNED, _QUARTERS = range(_COLUMNS, _COLUMNS + 3)
_STAINS = slice(_COLUMNS + 3, _COLUMNS + 9)
# Rows whose random numbers have one stream: a worker draws the numbers of at most this many rows before its own.
_BLOCK = 256
# Number of floats per chunk. A chunk that fits into the cache is up to twice as fast on a CPU; a GPU needs a memory limit.
_CHUNK = {"cpu": 2**19, "cuda": 2**27}


class Views:
    """Makes the views of a batch. Parameters of a view depend only on the stream and the row in the global batch.

    The views have the order of `ViewsConfig.groups`.

    >>> crops = Views(ViewsConfig(size=32))(images, stream)  # uint8 [B, 3, H, W] -> 2 × float [B, 3, 32, 32] in [0, 1]
    """

    def __init__(self, config: ViewsConfig) -> None:
        self.config = config
        self.groups = config.groups

    def __call__(
        self,
        images: Tensor,
        stream: Stream,
        rows: slice | None = None,
    ) -> tuple[Tensor, ...]:
        """Return V views, float32 [B, C, S_v, S_v], of images [B, C, H, W], uint8 or float in [0, 1], on one device.

        rows: rows of these images in the global batch (default: the whole batch), so that several processes make the
        same views as one process. Pixels are float32 even under autocast.
        """
        numbers = self.draw(stream, rows or slice(0, len(images)))  # [V, B, P]
        crops: list[Tensor] = []
        with torch.autocast(images.device.type, enabled=False):
            for group, share in self.by_group(numbers):
                crops += self._group(images, share, group).unbind()
        return tuple(crops)

    def _group(self, images: Tensor, numbers: Tensor, group: Group) -> Tensor:
        """Return the views of one group, [count, B, C, S, S], from uniform `numbers` [count, B, P]."""
        batch, channels, height, width = images.shape
        count = len(numbers)
        size = group.size
        flat = numbers.flatten(0, 1)
        boxes, turns = self.boxes(flat, height, width, group)
        numbers = torch.stack((*boxes, turns.flip.long(), turns.upside_down.long()))
        packed = to_device(numbers, images.device)  # [6, count·B]
        source = torch.arange(batch, device=images.device).repeat(count)
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        out = torch.empty((len(flat), channels, size, size), device=images.device)
        for part in _chunks(len(flat), channels * max(height * width, size * size), images.device):
            chosen = images.index_select(0, source[part])
            cut = geometry.crop_resize(
                chosen, geometry.Boxes(*packed[:4, part]), size, *packed[4:, part].bool()
            )
            _apply_(cut, turns.transposed[part].nonzero()[:, 0], lambda some: some.transpose(2, 3))
            self.recolor_(torch.mul(cut, scale, out=out[part]), flat[part], group)
        return out.view(count, batch, channels, size, size)

    def finish(
        self, crops: Sequence[Tensor], stream: Stream, rows: slice | None = None
    ) -> tuple[Tensor, ...]:
        """Apply colour operations to the crops of workers, V tensors [B, C, S_v, S_v], uint8 or float in [0, 1]."""
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
        """Return the random numbers in [0, 1) of the views of `rows` of the global batch: [V, rows, P].

        The numbers of a row depend on the stream and the position of the row, not on the size of the batch. The numbers
        of a group do not depend on later groups, so that further crops leave the first crops unchanged. Turns, stain
        jitter and RandAugment have streams of their own, so that switching them on leaves the crops unchanged.
        """
        config = self.config
        turned = config.vertical_flip_probability or config.quarter_turn_probability or config.stain
        further = {
            "domain": _STAINS.stop - _COLUMNS if turned else 0,
            "randaugment": config.randaugment_ops * randaugment.UNIFORMS_PER_OPERATION,
        }
        drawn = []
        for place, group in enumerate(self.groups):
            own = stream.child("views", place) if place else stream.child("views")
            streams = [(own, _COLUMNS)]
            streams += [(stream.child(name, place), count) for name, count in further.items()]
            numbers = []
            for each, columns in streams:
                numbers.append(_uniforms(each, rows, (group.count, columns)))
            drawn.append(torch.cat(numbers, 2).transpose(0, 1))
        return torch.cat(drawn)

    def by_group(self, numbers: Tensor) -> Iterator[tuple[Group, Tensor]]:
        """Yield each group with its part [count, …] of the numbers [V, …] of all views."""
        return zip(
            self.groups, torch.split(numbers, [group.count for group in self.groups]), strict=True
        )

    def boxes(
        self, numbers: Tensor, height: int, width: int, group: Group
    ) -> tuple[geometry.Boxes, geometry.Turns]:
        """Return crop boxes and turns [n], on the CPU, from `numbers` [n, P] for images of size height × width."""
        config = self.config
        uniforms = numbers[:, _BOX]
        if config.magnification is None:
            boxes = geometry.random_boxes(uniforms, height, width, group.scale, config.ratio)
        else:
            boxes = geometry.scaled_boxes(
                uniforms, height, width, group.size, config.magnification, config.ratio
            )
        flip = numbers[:, _FLIP] < config.flip_probability
        if not (config.vertical_flip_probability or config.quarter_turn_probability):
            return boxes, geometry.Turns(flip, torch.zeros_like(flip), torch.zeros_like(flip))
        quarters = (1 + 3 * numbers[:, _QUARTERS]).long() * (
            numbers[:, _TURNED] < config.quarter_turn_probability
        )
        upside_down = numbers[:, _UPSIDE_DOWN] < config.vertical_flip_probability
        return boxes, geometry.quarter_turned(flip, upside_down, quarters)

    def recolor_(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        """Apply colour operations in place to crops [n, C, S, S] of a group, from `numbers` [n, P].

        Pixels are in [0, 1]. Images without three channels get only brightness, contrast, blur and solarisation.
        """
        if strength := self.config.stain:
            change = strength * (2 * numbers[:, _STAINS] - 1)
            crops.copy_(photometric.stain_jitter(crops, 1 + change[:, :3], change[:, 3:]))
        for name in self.config.order:
            getattr(self, f"_{name}")(crops, numbers, group)

    def _jitter(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        config = self.config
        index = _chosen(numbers, _JITTER, config.jitter_probability)
        if not len(index) or not (
            config.brightness or config.contrast or config.saturation or config.hue
        ):
            return

        def factor(column: int, strength: float) -> Tensor:
            low = max(0.0, 1 - strength)
            return low + (1 + strength - low) * numbers[index, column]

        jitter = photometric.Jitter(
            factor(_BRIGHTNESS, config.brightness),
            factor(_CONTRAST, config.contrast),
            factor(_SATURATION, config.saturation),
            config.hue * (2 * numbers[index, _HUE] - 1),
            (numbers[index, _ORDER] * len(photometric.ORDERS)).long(),
        )
        by_turn = photometric.hue_turn(jitter).argsort(stable=True)
        jitter = jitter.select(by_turn)
        _apply_(crops, index[by_turn], lambda some: photometric.color_jitter(some, jitter))

    def _grayscale(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        _apply_(
            crops,
            _chosen(numbers, _GRAYSCALE, self.config.grayscale_probability),
            photometric.grayscale,
        )

    def _blur(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        index = _chosen(numbers, _BLUR, group.blur_probability)
        low, high = self.config.blur_sigma
        radius = photometric.blur_radius(high, crops.shape[-1])
        if len(index) and radius:
            sigma = to_device(low + (high - low) * numbers[index, _SIGMA], crops.device)
            _apply_(crops, index, lambda some: photometric.gaussian_blur(some, sigma, radius))

    def _solarize(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        _apply_(
            crops, _chosen(numbers, _SOLARIZE, group.solarize_probability), photometric.solarize
        )

    def _randaugment(self, crops: Tensor, numbers: Tensor, group: Group) -> None:
        config = self.config
        if columns := config.randaugment_ops * randaugment.UNIFORMS_PER_OPERATION:
            magnitude = config.randaugment_magnitude
            std = config.randaugment_magnitude_std
            randaugment.augment_(crops, numbers[:, -columns:], magnitude, std)


def _uniforms(stream: Stream, rows: slice, shape: tuple[int, int]) -> Tensor:
    """Return random numbers in [0, 1) of `rows` of the global batch: [rows, *shape]."""
    start = rows.start or 0
    first = start // _BLOCK * _BLOCK
    blocks = []
    # a process may have no row of a last batch: then one block is empty
    for block in range(first, max(rows.stop, first + 1), _BLOCK):
        own = stream.child("rows", block) if block else stream
        count = min(_BLOCK, rows.stop - block)
        blocks.append(torch.rand((count, *shape), generator=own.generator()))
    return torch.cat(blocks)[start - first :]


def _chosen(numbers: Tensor, column: int, probability: float) -> Tensor:
    return (numbers[:, column] < probability).nonzero()[:, 0]


def _apply_(crops: Tensor, index: Tensor, operation: Callable[[Tensor], Tensor]) -> None:
    """Apply an operation in place to the crops at `index` (on the CPU)."""
    if len(index):
        index = to_device(index, crops.device)
        crops.index_copy_(0, index, operation(crops.index_select(0, index)))


def _chunks(rows: int, floats_per_row: int, device: torch.device) -> list[slice]:
    step = max(1, _CHUNK.get(device.type, _CHUNK["cuda"]) // floats_per_row)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
