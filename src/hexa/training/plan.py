"""What a trainer is given: the numbers it works by, and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from hexa.core import Batch, Passes
from hexa.training.config import TrainingConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig


class Loader(Protocol):
    """Batches of views by epoch, from any step of it."""

    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def wait_seconds(self) -> float: ...
    @property
    def problems(self) -> list[str]: ...
    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]: ...
    def passes(self, epoch: int) -> Passes: ...


@dataclass(frozen=True)
class Plan:
    """The numbers that a trainer works by. learning_rate is the scaled one; batch_size is global."""

    epochs: int
    batch_size: int
    learning_rate: float
    schedule: ScheduleConfig
    training: TrainingConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    fingerprint: str = ""
    former_fingerprint: str = ""
    """By which checkpoints of hexa 0.1 are recognised."""
    monitor_every: int = 0
    max_steps: int | None = None


class Prepared:
    """Passes over the data whose batches are prepared as those of a step are."""

    def __init__(self, passes: Passes, prepare: Callable[[Batch], Batch]) -> None:
        self.labels, self.stream = passes.labels, passes.stream
        self._passes, self._prepare = passes, prepare

    def views(self) -> Iterator[Batch]:
        return map(self._prepare, self._passes.views())

    def images(self) -> Iterator[Batch]:
        return map(self._prepare, self._passes.images())
