"""Time spent training: not saving, not monitoring, not between two sessions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol


class Waits(Protocol):
    """Something that counts the seconds for which it was waited."""

    @property
    def wait_seconds(self) -> float: ...


@dataclass(frozen=True)
class Lap:
    """Seconds since the last lap, and how many of them were spent waiting for data."""

    seconds: float
    waited: float


class Clock:
    """Time spent training, pauses for monitors and checkpoints taken out, over all sessions of a run."""

    def __init__(self, loader: Waits) -> None:
        self._loader = loader
        self._before = 0.0
        self._begin = self._lap_begin = time.perf_counter()
        self._lap_waited = loader.wait_seconds

    def start(self, before: float) -> None:
        """Start, `before` seconds having passed in earlier sessions."""
        self._before = before
        self._begin = self._lap_begin = time.perf_counter()
        self._lap_waited = self._loader.wait_seconds

    @property
    def total(self) -> float:
        """Seconds of training in all sessions."""
        return self._before + time.perf_counter() - self._begin

    def lap(self) -> Lap:
        """Time since the last lap, and how much of it was spent waiting for data."""
        now, waited = time.perf_counter(), self._loader.wait_seconds
        lap = Lap(now - self._lap_begin, waited - self._lap_waited)
        self._lap_begin, self._lap_waited = now, waited
        return lap

    def paused(self) -> Pause:
        """A context whose duration is taken out."""
        return Pause(self)

    def skip(self, seconds: float) -> None:
        """Take seconds that just passed out."""
        self._begin += seconds
        self._lap_begin += seconds


class Pause:
    """What happens inside does not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.skip(time.perf_counter() - self._begin)
