"""Keeps small sources with images of one size as one tensor on the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from hexa.config import UserError, some
from hexa.data.sources.decode import DecodeError, quiet, unit
from hexa.data.sources.source import ArraySource, Source
from hexa.runtime.resources import usable_cores

Value = TypeVar("Value")
_BLOCK = 256
#: Longest side of resident images, because views of them use matrices over whole sides.
_LONGEST_SIDE = 2**14


class UnreadableImages(UserError):
    """More images than allowed are unreadable, for example because they were deleted during a run."""


class ImageStore:
    """All images of a source, decoded once.

    images: uint8, uint16 or float32 [N, C, H, W] on the device. problems: reasons for unreadable images, by position.
    stand_in: [N] on the CPU; for each image its own position or, if it is unreadable, that of the next readable image.
    """

    def __init__(self, images: Tensor, problems: Mapping[int, str]) -> None:
        self.images = images
        self.problems = dict(problems)
        every = range(len(images))
        readable = torch.tensor([place for place in every if place not in self.problems])
        following = torch.searchsorted(readable, torch.arange(len(images)))
        self.stand_in = readable[following % len(readable)]

    def take(self, index: Tensor) -> Tensor:
        """Return the images at `index` (on the device), [B, C, H, W]: uint8, or float in [0, 1]."""
        images = self.images
        if images.dtype == torch.uint16:  # index_select does not support it on every device
            return unit(images.view(torch.int16).index_select(0, index).view(torch.uint16))
        return images.index_select(0, index)

    @classmethod
    def of(
        cls, source: Source, device: torch.device, limit_bytes: float, tolerance: float
    ) -> ImageStore | None:
        """Return the store of a source; None if images differ in size or type, are long strips, or exceed `limit_bytes`.

        tolerance: a UserError lists the unreadable images if their share is larger.
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
    """Return the first readable image; None if no image is readable."""
    with suppress(UserError):
        return readable(source, 0, source.decode, [])[1]
    return None


def readable(
    source: Source, wanted: int, read: Callable[[int], Value], problems: list[tuple[int, str]]
) -> tuple[int, Value]:
    """Return position and `read(position)` of image `wanted` or, if it is unreadable, of the next readable image.

    problems: receives the unreadable positions with reasons. Raises UserError if a hundred images in a row, or all
    images, are unreadable.
    """
    first = ""
    tried = min(100, len(source))
    for position in ((wanted + offset) % len(source) for offset in range(tried)):
        try:
            return position, read(position)
        except DecodeError as error:
            problems.append((position, str(error)))
            first = first or f"{source.paths[position]}: {error}"
    raise UnreadableImages(
        f"data '{source.name}': {tried} images in a row cannot be read, the first is {first}"
    )


def check_problems(
    source: Source, problems: dict[int, str], tolerance: float, *new: tuple[int, str]
) -> None:
    """Add `new` problems; raise UserError if the share of unreadable images exceeds `tolerance`.

    A single unreadable image is accepted unless the tolerance is 0.
    """
    problems.update(new)
    count = len(problems)
    if count > (max(1.0, tolerance * len(source)) if tolerance > 0 else 0):
        listed = some(describe_problems(source, problems, count), "; ")
        raise UnreadableImages(
            f"data '{source.title}': at least {count} of {len(source)} images cannot be read, more "
            f"than {100 * tolerance:g} %: {listed}; remove these images or, in training, "
            "raise --training.max_corrupt_share; hexa embed counts them all"
        )


def describe_problems(source: Source, problems: Mapping[int, str], most: int = 1000) -> list[str]:
    """Return a line for each unreadable image, at most `most` lines."""
    listed = sorted(problems.items())[:most]
    lines = [f"{source.paths[index]}: {reason}" for index, reason in listed]
    return [*lines, "…"] if len(problems) > most else lines


def available_cores() -> int:
    """Return the number of cores for this process: its share if torchrun started several processes on the machine."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
