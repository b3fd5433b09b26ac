"""Training time, without saving, monitoring and time between sessions; and runs with a time
limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hexa.training.optimizers import ScheduledOptimizer


class Clock:
    """Seconds of training over all sessions of a run.

    `pauses`: seconds of all sessions that do not count.
    waited: returns the seconds spent waiting for data so far.
    """

    def __init__(self, waited: Callable[[], float]) -> None:
        self._waited = waited
        self.start(0.0)

    def start(self, before: float, pauses: float = 0.0) -> None:
        """Start the clock; `before` is the training time of earlier sessions in seconds, `pauses`
        the time of their pauses."""
        self.pauses = pauses
        self._begin = time.perf_counter() - before - pauses
        self._lap = before, self._waited()

    @property
    def total(self) -> float:
        """Return the seconds of training in all sessions."""
        return time.perf_counter() - self._begin - self.pauses

    def lap(self) -> tuple[float, float]:
        """Return the seconds since the last lap, and how many of them were spent waiting for
        data."""
        begin, waited = self._lap
        self._lap = self.total, self._waited()
        return self._lap[0] - begin, self._lap[1] - waited

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.pauses += time.perf_counter() - begin


class TimeLimit:
    """Adjusts the number of steps so that training takes `limit` seconds, including pauses.

    The throughput is measured over the last quarter of an epoch; the first measurement begins at
    step `first` of the session.
    """

    def __init__(
        self, limit: float, clock: Clock, optimizer: ScheduledOptimizer, first: int
    ) -> None:
        self.limit = limit
        self.clock = clock
        self.optimizer = optimizer
        self.end: float | None = None
        """End of the time limit on the clock `time.monotonic`, in seconds."""
        self._first = first
        self._since = first
        self._began = clock.total

    def fitted(
        self, step: int, sets: int | None, score_seconds: float, score_every: int
    ) -> tuple[int, int | None]:
        """Return the total number of steps, given that `step` are done, and the number of epochs
        with new views.

        sets: the current number of epochs with new views; None if no views repeat.
        score_seconds: duration of the last evaluation in seconds, assumed for the next ones.
        score_every: epochs between two evaluations; one more follows at the end.
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
        settled = self._since > self._first  # the first steps also start the workers
        # if hardly any time would be left to repeat views, reduce the epochs with new views
        drawn = (sets or 0) * per_epoch
        if sets and sets > 2 and settled and (drawn - step) * seconds > 0.9 * left:
            affordable = int((step + 0.7 * left / seconds) / per_epoch)
            sets = max(2, math.ceil(step / per_epoch), affordable)
            drawn = sets * per_epoch
        # repeated views make steps much faster than before; more learning stages make them slower
        known = self._since >= drawn or (settled and (drawn - step) * seconds > left)
        if known and step < total and not self.optimizer.thaws_after((step - 1) // per_epoch):
            scores = math.ceil((total - step) / per_epoch / (score_every or math.inf))
            # half of the time at most: the first evaluation also decodes its images
            left -= min(left / 2, scores * score_seconds)
            total = step + max(0, int(left / seconds))
        self._since = step
        self._began = now
        return total, sets
