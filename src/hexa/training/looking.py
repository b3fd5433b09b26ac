"""What is only for looking at a training (monitor, tracker, report) never ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hexa.config import reason


class Looking:
    """Contexts whose failures are warnings, once for each reason."""

    def __init__(self, warn: Callable[[list[str]], object]) -> None:
        self._warn = warn
        self._said: set[str] = set()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            message = f"{what} failed ({type(error).__name__}: {reason(error)}); the run is not affected"
            if message not in self._said:
                self._said.add(message)
                self._warn([message])
