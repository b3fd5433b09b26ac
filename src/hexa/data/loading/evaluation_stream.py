"""Prepares all images of a source for evaluation: decodes them (in worker processes if they are large), resizes them, cuts
their centres, and yields batches."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from hexa.data.loading.store import check_problems, first_image
from hexa.data.loading.workers import Items, Problems, alike, choose_workers
from hexa.data.sources.decode import DecodeError, unit
from hexa.data.sources.source import ArraySource, Source
from hexa.runtime.precision import to_device

#: Maximum ratio of the sides of an image that is resized whole; longer images could grow to gigabytes.
LONGEST = 16
#: Maximum number of bytes of decoded images that are transformed together.
_TOGETHER = 2**22
#: Images of equal shape and type can be stacked.
_kind = operator.attrgetter("shape", "dtype")
#: Images [n, C, S, S] and their positions [n]; empty if no image of the batch is readable.
Made = list[tuple[Tensor, Tensor]]


@dataclass
class Look:
    """A function that is applied to every decoded image before the transform, and its results.

    see: the function of an image [C, H, W]; it runs in the worker processes. found: results by position.
    """

    see: Callable[[Tensor], Any]
    found: dict[int, Any] = field(default_factory=dict)


def evaluation_batches(
    source: Source,
    transform: EvaluationTransform,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    num_workers: int | None = None,
    problems: dict[int, str] | None = None,
    tolerance: float = 0.01,
    positions: range | None = None,
    share: tuple[int, int] = (0, 1),
    look: Look | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all images once, in order: transformed images [B, C, S, S] and positions int64 [B], both on the CPU.

    Unreadable images are left out. device: the device that batches are for. problems: receives the unreadable images; a
    UserError lists them if their share of the source exceeds `tolerance`. positions: positions of the images (default:
    all). share: (r, n) yields every n-th batch, starting at batch r, so that n processes share the work. look: function
    to apply to the decoded images.
    """
    device = torch.device(device)
    problems = {} if problems is None else problems
    if num_workers is None:
        image = first_image(source)
        cheap = (
            isinstance(source, ArraySource) or image is None or image.shape[1] <= 64
        )  # decoding is cheaper than transfer between processes
        num_workers = 0 if cheap else choose_workers(None, device)
    plan = _EvaluationPlan(
        source,
        transform,
        batch_size,
        range(len(source)) if positions is None else positions,
        None if look is None else look.see,
    )
    first, step = share
    numbers = range(first, math.ceil(len(plan.positions) / batch_size), step)
    # plan[number] for each number, made by worker processes if the images are large
    with closing(Items(plan, numbers, device, num_workers)) as items:
        for batch, unreadable, seen in items:
            check_problems(source, problems, tolerance, *unreadable)
            if look is not None:
                look.found.update(seen)
            yield from batch


def floats(images: Tensor, device: torch.device) -> Tensor:
    """Return images of `evaluation_batches` on `device`, as float32 in [0, 1]."""
    # one pass over the pixels converts type and memory format
    pixels = to_device(images, device).to(torch.float32, memory_format=torch.channels_last)
    return pixels.div_(255) if images.dtype == torch.uint8 else pixels


@dataclass
class _EvaluationPlan(Dataset[tuple[Made, Problems, dict[int, Any]]]):
    source: Source
    transform: EvaluationTransform
    batch_size: int
    positions: range
    see: Callable[[Tensor], Any] | None = None

    def __getitem__(self, number: int) -> tuple[Made, Problems, dict[int, Any]]:
        made = list[Tensor]()  # transformed images
        index = list[int]()  # their positions
        same: dict[int, Tensor] = {}  # decoded images of one shape by position, not yet transformed
        problems = Problems()
        seen = dict[int, Any]()

        def transform() -> None:
            made.append(self.transform(torch.stack([*same.values()])))
            index.extend(same)
            same.clear()

        for position in self.positions[number * self.batch_size : (number + 1) * self.batch_size]:
            try:
                # of a file: decode.decode(decode.read(path))
                image = self.source.decode(position)
            except DecodeError as error:
                problems.append((position, str(error)))
                continue
            if self.see is not None:
                seen[position] = self.see(image)
            # transforming small images together is faster, but a batch of large images would fill the memory
            new = _kind(image) != _kind(next(iter(same.values()), image))
            if new or len(same) * image.numel() > _TOGETHER:
                transform()
            same[position] = image
        if same:
            transform()
        batch = [(torch.cat(alike(made)), torch.tensor(index))] if made else []
        return batch, problems, seen


class EvaluationTransform:
    """Resizes images and cuts the centre, for evaluation (F23, F21).

    Maps uint8 [..., C, H, W] to uint8 [..., C, S, S], and uint16 and float to float in [0, 1]. A square image of at most
    S pixels is used whole, and enlarged if it is smaller (CIFAR at 32, STL-10 at 96). For any other image, the shorter
    side is resized to S / crop and the central S × S pixels are cut, 256 and 224 in publications. Resizing is bilinear or
    bicubic, with antialiasing. If one side is more than 16 times the other, only the middle of the image is used.
    """

    def __init__(self, size: int, crop: float = 224 / 256, interpolation: str = "bilinear") -> None:
        self.size = size
        self.interpolation = interpolation
        #: Shorter side before the cut, in pixels.
        self.short = round(size / crop)

    def takes_whole(self, height: int, width: int) -> bool:
        """True if images of this size are used whole, without a crop."""
        return height == width <= self.size

    def __call__(self, images: Tensor) -> Tensor:
        if images.ndim == 3:
            return self(images[None])[0]
        height, width = images.shape[2:]
        most = LONGEST * min(height, width)
        rows = _middle(height, most)
        columns = _middle(width, most)
        middle = images[:, :, rows, columns]
        if middle.dtype != torch.uint8:
            middle = unit(middle)
        return self._resized(middle)

    def _resized(self, batch: Tensor) -> Tensor:
        size = self.size
        height, width = batch.shape[2:]
        if self.takes_whole(height, width):
            return resize(batch, size, size, self.interpolation)
        shorter = min(height, width)
        high = int(self.short * height / shorter)
        wide = int(self.short * width / shorter)
        whole = resize(batch, high, wide, self.interpolation)
        top = round((high - size) / 2)
        left = round((wide - size) / 2)
        return whole[:, :, top : top + size, left : left + size]


def _middle(length: int, most: int) -> slice:
    """Return the middle of a side, at most `most` pixels long."""
    start = max(0, length - most) // 2
    return slice(start, start + most)


def resize(images: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """Resize images [B, C, H, W], uint8 or float in [0, 1], to [B, C, height, width] of the same type, with antialiasing."""
    size = (height, width)
    if images.shape[2:] == size:
        return images
    is_bytes = images.dtype == torch.uint8
    # resizing bytes is four times faster, and closer to PIL, the resizer of published code; torch fails at one pixel
    if images.device.type == "cpu" and is_bytes and size != (1, 1):
        return functional.interpolate(images, size, mode=interpolation, antialias=True)
    floats = functional.interpolate(images.float(), size, mode=interpolation, antialias=True)
    if is_bytes:
        return floats.round_().clamp_(0, 255).to(images.dtype)
    return floats.clamp_(0, 1)
