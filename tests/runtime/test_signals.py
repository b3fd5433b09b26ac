"""What asks for a stop, what hurries it, and what is left alone."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from hexa.runtime.signals import Interrupts

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def usual() -> Iterator[list[int]]:
    """What reaches the handlers that were there before."""
    seen: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: seen.append(number)) for number in ALL
    }
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ALL, ALL)))
def test_only_ctrl_c_hurries(usual: list[int], first: int, second: int) -> None:
    """A scheduler, a shell that ends and a parent repeat the signal, or send another, while the state is saved."""
    with Interrupts(lambda _: None) as interrupts:
        signal.raise_signal(first)
        assert usual == []
        signal.raise_signal(second)
        assert usual == [second] * (second == signal.SIGINT)
        assert interrupts.received == first
    for number in ALL:
        signal.raise_signal(number)
    assert usual[-3:] == list(ALL)


def test_a_hang_up_that_is_ignored_stays_ignored(usual: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts(lambda _: None) as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
