"""Batches on a stream of their own, with stand-ins that note what a GPU would do, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hexa.core import Batch
from hexa.data.loading.side_stream import SideStream
from hexa.runtime.random import Stream

CUDA = torch.device("cuda")


class Event:
    def __init__(self, log: list[str], number: int) -> None:
        self.log = log
        self.number = number
        self.done = False

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.number}")

    def query(self) -> bool:
        return self.done


class Queue:
    """A stream."""

    device = CUDA

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.events: list[Event] = []

    def wait_stream(self, other: Queue) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> Event:
        self.events.append(Event(self.log, len(self.events)))
        self.log.append(f"{self.name} has event {self.events[-1].number}")
        return self.events[-1]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams, events and memory are asked to do."""
    noted: list[str] = []
    main = Queue("main", noted)

    @contextmanager
    def inside(queue: Queue) -> Iterator[None]:
        noted.append(f"on {queue.name}:")
        yield
        noted.append(f"end of {queue.name}")

    def used(tensor: torch.Tensor, queue: Queue) -> None:
        noted.append(f"{tuple(tensor.shape)} used by {queue.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Queue("side", noted))
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.Tensor, "record_stream", used)
    return noted


def batch_of(log: list[str], number: int) -> Any:
    def make() -> Batch:
        log.append(f"make {number}")
        return Batch((torch.rand(2, 3, 4, 4),), torch.arange(2), Stream(0), number)

    return make


def test_order(log: list[str]) -> None:
    """A batch waits for no step, a step for its batch, and the host for the last step but one."""
    side = SideStream(CUDA)
    first, _ = side.batch(batch_of(log, 0))
    uses = ["main waits for side", "(2, 3, 4, 4) used by main", "(2,) used by main"]
    made = ["on side:", "make 0", "end of side"]
    assert log == ["side waits for main", "main has event 0", *made, *uses]
    log.clear()
    second, _ = side.batch(batch_of(log, 1))
    made[1] = "make 1"
    assert log == ["host waits for 0", "main has event 1", *made, *uses]
    assert (first.step, second.step) == (0, 1)


@pytest.mark.parametrize("ends", [False, True])
def test_waiting(log: list[str], ends: bool) -> None:
    """The making of a batch counts as waiting only if the step before has ended in the meantime."""
    side = SideStream(CUDA)
    side.batch(batch_of(log, 0))

    def make() -> Batch:
        torch.cuda.current_stream(CUDA).events[-1].done = ends  # type: ignore[attr-defined]
        return batch_of(log, 1)()  # type: ignore[no-any-return]

    _, seconds = side.batch(make)
    assert (seconds > 0) is ends


def test_other_devices(log: list[str]) -> None:
    """There is no stream; all making is waiting."""
    side = SideStream(torch.device("cpu"))
    batch, seconds = side.batch(batch_of(log, 0))
    assert log == ["make 0"]
    assert batch.step == 0
    assert seconds > 0
