"""Time spent training: saving, monitoring and the time between sessions do not count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of training over all sessions of a run, and `pauses`, the seconds of this session that do not count.

    waited: seconds that were spent waiting for data so far.
    """

    def __init__(self, waited: Callable[[], float]) -> None:
        self._waited = waited
        self.start(0.0)

    def start(self, before: float) -> None:
        """Start, `before` seconds having passed in earlier sessions."""
        now = time.perf_counter()
        self._begin, self._lap_begin, self._lap_waited = now - before, now, self._waited()
        self.pauses = 0.0

    @property
    def total(self) -> float:
        """Seconds of training in all sessions."""
        return time.perf_counter() - self._begin

    def lap(self) -> tuple[float, float]:
        """Seconds since the last lap, and how many of them were spent waiting for data."""
        now, waited = time.perf_counter(), self._waited()
        lap = now - self._lap_begin, waited - self._lap_waited
        self._lap_begin, self._lap_waited = now, waited
        return lap

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._begin += seconds
            self._lap_begin += seconds
            self.pauses += seconds
