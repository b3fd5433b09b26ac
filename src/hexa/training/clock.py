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
        self.pauses = 0.0
        self._begin = time.perf_counter() - before
        self._lap = before, self._waited()

    @property
    def total(self) -> float:
        """Seconds of training in all sessions."""
        return time.perf_counter() - self._begin - self.pauses

    def lap(self) -> tuple[float, float]:
        """Seconds since the last lap, and how many of them were spent waiting for data."""
        (begin, waited), self._lap = self._lap, (self.total, self._waited())
        return self._lap[0] - begin, self._lap[1] - waited

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.pauses += time.perf_counter() - begin
