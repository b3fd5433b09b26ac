"""Random draws, and the one way in which values that differ between steps enter a step.

Draws for the images of one process differ between processes; other draws are equal on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from hexa.runtime import processes
from hexa.runtime.precision import to_device
from hexa.runtime.random import Stream


def drawn(make: Callable[[Stream], Tensor], stream: Stream, device: torch.device) -> Tensor:
    """Return make(stream) on the device.

    make: a function of the stream alone.
    stream: a child of the batch's stream.
    """
    values = _current.get()
    if values is None:
        return to_device(make(stream), device)
    keys = stream.path[len(values.stream.path) :]
    return values.take(lambda given, _: make(given.child(*keys)), device)


def of_step(
    make: Callable[[int], float],
    step: int,
    device: torch.device,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the number make(step), such as a momentum, as a 0-d tensor on the device.

    make: a function of the step alone.
    """

    def number(_: Stream | None, at: int) -> Tensor:
        return torch.full((), make(at), dtype=dtype, device=device)

    values = _current.get()
    return number(None, step) if values is None else values.take(number, device)


@dataclass
class _Value:
    make: Callable[[Stream, int], Tensor]
    tensor: Tensor


class StepValues:
    """Tensors for the values that steps of one kind take by `drawn` and `of_step`, in call order.

    The first step inside `of` creates the tensors. Every later step finds its own values in the
    same tensors. A CUDA graph that has read them can therefore be replayed for another step.
    """

    def __init__(self) -> None:
        self.stream = Stream(0)
        self._step = 0
        self._values: list[_Value] = []
        self._taken = 0

    def fill(self, stream: Stream, step: int) -> None:
        """Compute the values of step `step`, whose batch has this stream."""
        self.stream = stream
        self._step = step
        for value in self._values:
            made = value.make(stream, step)
            value.tensor.copy_(to_device(made, value.tensor.device))

    @contextmanager
    def of(self, stream: Stream, step: int) -> Iterator[None]:
        """Inside the context, step `step` takes its values from this object."""
        self.fill(stream, step)
        with self.as_filled():
            yield

    @contextmanager
    def as_filled(self) -> Iterator[None]:
        """Inside the context, a step takes the current values."""
        self._taken = 0
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def take(self, make: Callable[[Stream, int], Tensor], device: torch.device) -> Tensor:
        """Return the next value of the current step."""
        if self._taken == len(self._values):
            made = make(self.stream, self._step)
            self._values.append(_Value(make, to_device(made, device).clone()))
        self._taken += 1
        return self._values[self._taken - 1].tensor


_current: ContextVar[StepValues | None] = ContextVar("step values", default=None)


def partners(count: int, stream: Stream) -> Tensor:
    """Return the partner of each image for mixing: a permutation of the `count` images of this
    process, on the CPU (D14)."""
    generator = stream.child("permutation", processes.rank()).generator()
    return torch.randperm(count, generator=generator)


def like(draw: Callable[..., Tensor], crop: Tensor, stream: Stream) -> Tensor:
    """Return random numbers for a crop [B, 3, S, S], drawn on its device (generators differ between
    devices).

    draw: torch.rand (uniform in [0, 1)) or torch.randn (standard normal).
    """
    shape = crop.shape
    device = crop.device
    dtype = crop.dtype

    def make(own: Stream) -> Tensor:
        generator = own.child(processes.rank()).generator(device)
        return draw(shape, generator=generator, device=device).to(dtype)

    return drawn(make, stream, device)


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
