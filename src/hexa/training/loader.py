"""What a trainer takes its batches from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from hexa.core import Batch, Passes


class Loader(Protocol):
    """Batches of views by epoch, from any step of it. batch_size is global."""

    batch_size: int
    steps_per_epoch: int
    wait_seconds: float

    @property
    def problems(self) -> list[str]: ...
    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]: ...
    def passes(self, epoch: int) -> Passes: ...


class Prepared:
    """Passes over the data whose batches are prepared as those of a step are."""

    def __init__(self, passes: Passes, prepare: Callable[[Batch], Batch]) -> None:
        self.labels, self.stream = passes.labels, passes.stream
        self._passes, self._prepare = passes, prepare

    def views(self) -> Iterator[Batch]:
        return map(self._prepare, self._passes.views())

    def images(self) -> Iterator[Batch]:
        return map(self._prepare, self._passes.images())
