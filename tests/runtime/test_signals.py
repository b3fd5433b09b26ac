"""Signals that ask for a stop, a second signal, and ignored signals."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hexa.runtime.signals import Interrupted, Interrupts

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def usual() -> Iterator[list[int]]:
    """The signals that reach the previous handlers."""
    seen: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: seen.append(number)) for number in ALL
    }
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ALL, ALL)))
def test_second_signal(usual: list[int], first: int, second: int) -> None:
    """A scheduler, a shell that ends and a parent repeat the signal, or send another, while the state is saved."""
    with Interrupts(lambda _: None) as interrupts:
        signal.raise_signal(first)
        assert usual == []
        signal.raise_signal(second)
        assert usual == ([second] if second == signal.SIGINT else [])
        assert interrupts.received == first
    for number in ALL:
        signal.raise_signal(number)
    assert usual[-len(ALL) :] == list(ALL)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_ignored_signal(usual: list[int], number: int) -> None:
    """A signal that is ignored stays ignored."""
    signal.signal(number, signal.SIG_IGN)
    with Interrupts(lambda _: None) as interrupts:
        os.kill(os.getpid(), number)
        assert interrupts.received is None
        assert signal.getsignal(number) == signal.SIG_IGN
    assert signal.getsignal(number) == signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_scheduler_signal_handler(usual: list[int], number: int) -> None:
    """The handler of a scheduler is called once the work has stopped."""

    def work() -> None:
        with Interrupts(lambda _: None) as interrupts:
            signal.raise_signal(number)
            assert usual == []
            raise Interrupted(interrupts.noticed() or 0, 3, None)

    with pytest.raises(Interrupted):
        work()
    assert usual == [number]


def test_nothing_saved_yet() -> None:
    """Before the first step nothing is saved, and a run can still be continued."""
    first, later = (str(Interrupted(signal.SIGTERM, step, Path("run"))) for step in (0, 3))
    assert "saved" not in first
    assert "saved" in later
    assert first.endswith("hexa resume run")
