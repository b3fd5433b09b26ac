"""Random draws for the images of one process, which differ between processes; other draws are equal
on all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hexa.runtime import processes
from hexa.runtime.random import Stream


def partners(count: int, stream: Stream) -> Tensor:
    """Return the partner of each image for mixing: a permutation of the `count` images of this
    process, on the CPU (D14)."""
    generator = stream.child("permutation", processes.rank()).generator()
    return torch.randperm(count, generator=generator)


def uniform_like(crop: Tensor, stream: Stream) -> Tensor:
    """Return uniform numbers in [0, 1) for a crop [B, 3, S, S], drawn on its device (generators
    differ between devices)."""
    return _drawn_like(torch.rand, crop, stream)


def normal_like(crop: Tensor, stream: Stream) -> Tensor:
    """Return standard normal numbers for a crop [B, 3, S, S], drawn on its device (generators
    differ between devices)."""
    return _drawn_like(torch.randn, crop, stream)


def _drawn_like(draw: Callable[..., Tensor], crop: Tensor, stream: Stream) -> Tensor:
    generator = stream.child(processes.rank()).generator(crop.device)
    return draw(crop.shape, generator=generator, device=crop.device).to(crop.dtype)


def integers(
    count: int,
    below: int,
    stream: Stream,
) -> Tensor:
    """Return numbers 0 … below − 1, int64 [count] on the CPU; each depends on the image's position
    in the global batch."""
    first = processes.rank() * count
    return torch.randint(below, (first + count,), generator=stream.generator())[first:]


def uniforms(
    count: int,
    numbers: int,
    stream: Stream,
) -> Tensor:
    """Return numbers in [0, 1), [count, numbers] on the CPU; each row depends on the image's
    position in the global batch."""
    first = processes.rank() * count
    return torch.rand(first + count, numbers, generator=stream.generator())[first:]
