"""Keeps a source of images of one size that fits into memory as one tensor on the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from hexa.config import UserError, some
from hexa.data.sources.decode import DecodeError
from hexa.data.sources.pil import quiet
from hexa.data.sources.source import ArraySource, Source
from hexa.ops.photometric import unit
from hexa.runtime.cores import usable_cores

Value = TypeVar("Value")
_BLOCK = 256
#: Views of resident images are products with matrices over whole sides, which longer strips make slow and large.
_LONGEST_SIDE = 2**14


class UnreadableImages(UserError):
    """More images than allowed cannot be read; in a run they were perhaps removed since its beginning."""


class ImageStore:
    """All images of a source, decoded once.

    images: uint8, uint16 or float32 [N, C, H, W] on the device. problems: why images could not be read, by position.
    stand_in: [N] on the CPU, the position of the image to show for each: its own, or that of the next readable one.
    """

    def __init__(self, images: Tensor, problems: Mapping[int, str]) -> None:
        self.images = images
        self.problems = dict(problems)
        every = range(len(images))
        readable = torch.tensor([place for place in every if place not in self.problems])
        following = torch.searchsorted(readable, torch.arange(len(images)))
        self.stand_in = readable[following % len(readable)]

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` (on the device), [B, C, H, W]: uint8, or float in [0, 1]."""
        images = self.images
        if images.dtype == torch.uint16:  # index_select does not support it on every device
            return unit(images.view(torch.int16).index_select(0, index).view(torch.uint16))
        return images.index_select(0, index)

    @classmethod
    def of(
        cls, source: Source, device: torch.device, limit_bytes: float, tolerance: float
    ) -> ImageStore | None:
        """The store of a source; None if its images differ in size or type, are strips, or exceed `limit_bytes`.

        tolerance: if a larger share of the images is unreadable, UserError lists them.
        """
        first = first_image(source)
        if first is None or first.nbytes * len(source) > limit_bytes:
            return None
        if isinstance(source, ArraySource):
            return cls(source.images.to(device), {})
        if max(first.shape[1:]) > _LONGEST_SIDE:
            return None
        images = torch.zeros((len(source), *first.shape), dtype=first.dtype)
        problems: dict[int, str] = {}

        def block(start: int) -> bool:
            for index in range(start, min(start + _BLOCK, len(source))):
                try:
                    image = source.decode(index)
                except DecodeError as error:
                    problems[index] = str(error)
                    continue
                if (image.shape, image.dtype) != (images.shape[1:], images.dtype):
                    return False
                images[index] = image
            return True

        pool = ThreadPoolExecutor(available_cores())
        try:
            with quiet():
                for of_one_size in pool.map(block, range(0, len(source), _BLOCK)):
                    if not of_one_size:
                        return None
                    check_problems(source, problems, tolerance)
        finally:
            pool.shutdown(cancel_futures=True)
        return cls(images.to(device), problems)


def first_image(source: Source) -> Tensor | None:
    """The first image that can be read, or None."""
    with suppress(UserError):
        return readable(source, 0, source.decode, [])[1]
    return None


def readable(
    source: Source, wanted: int, read: Callable[[int], Value], problems: list[tuple[int, str]]
) -> tuple[int, Value]:
    """The position of image `wanted`, or of the next one that can be read, and what `read` makes of that position.

    problems: takes in the positions before it, and why they cannot be read. Raises UserError if a hundred images in a
    row, or all, cannot be read.
    """
    first = ""
    tried = min(100, len(source))
    for position in ((wanted + offset) % len(source) for offset in range(tried)):
        try:
            return position, read(position)
        except DecodeError as error:
            problems.append((position, str(error)))
            first = first or f"{source.paths[position]}: {error}"
    many = f"{tried} images in a row cannot be read"
    raise UnreadableImages(f"data '{source.name}': {many}, the first is {first}")


def check_problems(
    source: Source, problems: dict[int, str], tolerance: float, *new: tuple[int, str]
) -> None:
    """Add `new` problems to the known ones. Raise UserError if a larger share of the images than `tolerance` is
    unreadable; one is allowed unless that is 0.
    """
    problems.update(new)
    count = len(problems)
    if count > (max(1.0, tolerance * len(source)) if tolerance > 0 else 0):
        listed = some(describe_problems(source, problems, count), "; ")
        many = f"{count} of {len(source)} images cannot be read, more than {100 * tolerance:g} %"
        raised = f"raise --training.max_corrupt_share above {count / len(source):.2g}"
        remedy = f"remove them, or, in training, {raised}"
        raise UnreadableImages(f"data '{source.title}': {many}: {listed}; {remedy}")


def describe_problems(source: Source, problems: Mapping[int, str], most: int = 1000) -> list[str]:
    """A line for each unreadable image, up to a limit."""
    listed = sorted(problems.items())[:most]
    lines = [f"{source.paths[index]}: {reason}" for index, reason in listed]
    return [*lines, "…"] if len(problems) > most else lines


def available_cores() -> int:
    """The cores this process may use; its share of them if several processes were started on this machine."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
