"""Time spent training, without saving, monitoring and the time between sessions; and runs of limited time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hexa.training.optimizers import ScheduledOptimizer


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
        begin, waited = self._lap
        self._lap = self.total, self._waited()
        return self._lap[0] - begin, self._lap[1] - waited

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside the context does not count."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.pauses += time.perf_counter() - begin


class TimeLimit:
    """Fits the number of steps to `limit` seconds, pauses included.

    The speed is that of the last quarter of an epoch, which begins with the session at `first`, a step.
    """

    def __init__(
        self, limit: float, clock: Clock, optimizer: ScheduledOptimizer, first: int
    ) -> None:
        self.limit = limit
        self.clock = clock
        self.optimizer = optimizer
        self.end: float | None = None
        """When the time is over, by `time.monotonic`."""
        self._first = first
        self._since = first
        self._began = clock.total

    def fitted(
        self, step: int, sets: int | None, score_seconds: float, score_every: int
    ) -> tuple[int, int | None]:
        """The total number of steps after `step` of them, and the number of epochs that have views of their own.

        sets: this number until now, None if no views repeat. score_seconds: of the last score, which those to come
        take, too; there is one every `score_every` epochs, and one at the end.
        """
        total = self.optimizer.total_steps
        per_epoch = self.optimizer.steps_per_epoch
        now = self.clock.total
        left = self.limit - now - self.clock.pauses
        self.end = time.monotonic() + left
        if left <= 0:
            return min(total, step), sets
        steps = step - self._since
        if steps < max(1, per_epoch // 4):
            return total, sets
        seconds = max(now - self._began, 1e-9) / steps
        settled = self._since > self._first  # the first steps start the workers
        # if hardly any time would be left to repeat views, fewer epochs have views of their own
        drawn = (sets or 0) * per_epoch
        if sets and sets > 2 and settled and (drawn - step) * seconds > 0.9 * left:
            affordable = int((step + 0.7 * left / seconds) / per_epoch)
            sets = max(2, math.ceil(step / per_epoch), affordable)
            drawn = sets * per_epoch
        # steps that repeat views are much faster than those before, and those with more stages slower
        known = self._since >= drawn or (settled and (drawn - step) * seconds > left)
        if known and step < total and not self.optimizer.thaws_after((step - 1) // per_epoch):
            scores = math.ceil((total - step) / per_epoch / (score_every or math.inf))
            # half of the time at most: the first score decodes its images, too
            left -= min(left / 2, scores * score_seconds)
            total = step + max(0, int(left / seconds))
        self._since = step
        self._began = now
        return total, sets
