"""Processes that train on the same cores take turns, and none waits for ever."""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from hexa.runtime import turns as module
from hexa.runtime.turns import turns

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _file_of_this_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "allowed_cores", lambda: [3])


@contextmanager
def child(work: Callable[[Callable[[bytes], object]], object]) -> Iterator[tuple[int, Callable[..., bytes]]]:
    """A forked process that does `work(tell)`: its number, and a function that waits so long for what it tells next."""
    reading, writing = os.pipe()
    number = os.fork()
    if number == 0:
        try:
            signal.alarm(60)
            work(lambda word: os.write(writing, word))
        finally:
            os._exit(0)
    os.close(writing)

    def told(seconds: float = 60) -> bytes:
        return os.read(reading, 1) if select.select([reading], [], [], seconds)[0] else b""

    try:
        yield number, told
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(reading)


def takes(tell: Callable[[bytes], object], keeps: bool = False) -> None:
    tell(b"1")
    with turns(CPU):
        tell(b"2")
        if keeps:
            time.sleep(60)


holds = partial(takes, keeps=True)


def test_who_waits_gets_the_cores_when_they_are_offered_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN", 0.0)
    with turns(CPU) as offer, child(takes) as (_, told):
        assert told() == b"1"
        assert told(0.2) == b""
        while not told(0.01):
            offer()


def test_nobody_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that never rest get turns alike, though the one that gives way could take the cores again at once."""
    monkeypatch.setattr(module, "_TURN", 0.02)

    def trains(steps: int, tell: Callable[[bytes], object]) -> None:
        with turns(CPU) as offer:
            for _ in range(steps):
                tell(b"x")
                time.sleep(0.02)
                offer()

    seen: list[bytes] = []
    with child(partial(trains, 1000)) as (_, told):
        assert told() == b"x"
        trains(20, lambda word: seen.append(told(0)))
    assert seen.count(b"x") >= 10


@pytest.mark.parametrize("threads", [1, 2])
def test_only_as_many_cores_as_threads_are_held(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(module, "allowed_cores", lambda: [3, 5])
    with child(holds) as (_, told):
        assert (told(), told()) == (b"1", b"2")
        monkeypatch.setattr(module, "_PATIENCE", 0.2)
        begin = time.monotonic()
        with turns(CPU):
            assert (time.monotonic() - begin >= 0.2) == (threads == 2)


def test_cores_of_a_process_that_is_killed_are_free() -> None:
    with child(holds) as (number, told):
        assert (told(), told()) == (b"1", b"2")
        os.kill(number, signal.SIGKILL)
        begin = time.monotonic()
        with turns(CPU):
            assert time.monotonic() - begin < module._PATIENCE / 2


def test_one_that_stands_still_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN", 0.0)
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    with child(holds) as (number, told):
        assert (told(), told()) == (b"1", b"2")
        os.kill(number, signal.SIGSTOP)
        begin = time.monotonic()
        with turns(CPU) as offer:
            assert time.monotonic() - begin >= 0.2
            monkeypatch.setattr(module, "_PATIENCE", 1000.0)
            for _ in range(50):
                offer()


def test_where_no_file_can_be_opened_it_goes_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"hexa-cores-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with turns(CPU) as offer:
        offer()
    assert not (tmp_path / "elsewhere").exists(), "a link that somebody else may have put there is not followed"
    with turns(torch.device("cuda")) as offer:
        offer()
