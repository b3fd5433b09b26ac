"""The command line in a child process to which something happens at a moment of our choosing."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tests.torture.harness import Ended

#: Where "any moment" begins: all that a run writes is written inside.
TRAINING = "hexa.session.run:_Session._train"


@dataclass(frozen=True)
class Strike:
    """`act` happens right before call number `call` of a function, "module:name", or of any function while training."""

    act: Callable[[], object]
    at: str = ""
    call: int = 1

    def arm(self) -> None:
        """Prepare this process."""
        if self.at:
            _wrap(self.at, lambda number: self.act() if number == self.call else None)
        else:
            _wrap(TRAINING, lambda _: sys.setprofile(_Countdown(self.call, self.act)))


class _Countdown:
    """A profiler that acts at a function call, counted from its beginning."""

    def __init__(self, calls: int, act: Callable[[], object]) -> None:
        self.calls, self.act = calls, act

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls -= 1
            if not self.calls:
                sys.setprofile(None)
                self.act()


def _wrap(at: str, before: Callable[[int], object]) -> None:
    module, _, name = at.partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    real, numbers = getattr(owner, last), itertools.count(1)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        before(next(numbers))
        return real(*arguments, **named)

    setattr(owner, last, wrapped)


@contextmanager
def counting() -> Iterator[list[int]]:
    """How many functions are called within: the only number of the list, once it is left."""
    counter, found = _Countdown(-1, lambda: None), list[int]()
    sys.setprofile(counter)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found.append(-1 - counter.calls)


# -- what may happen ------------------------------------------------------------------------------------------------


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def after(calls: int, act: Callable[[], object]) -> None:
    """`act` at this function call from now on."""
    sys.setprofile(_Countdown(calls, act))


def count_calls(path: Path) -> None:
    """Write down how many functions this process calls from now until its end."""
    counter = _Countdown(-1, lambda: None)
    sys.setprofile(counter)
    Finalize(None, lambda: path.write_text(str(-1 - counter.calls)), exitpriority=0)


def kill_a_worker() -> None:
    child = multiprocessing.active_children()[0].pid
    assert child is not None
    os.kill(child, signal.SIGKILL)


def fill(most: int = 1) -> None:
    """From now on no file may become larger than this: as a full disk, but for what the system calls it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


# -- the process ----------------------------------------------------------------------------------------------------


class Started:
    """`hexa ARGUMENTS` in a child of a server that has everything imported: a second, not five."""

    def __init__(self, *arguments: object, strike: Strike | None = None) -> None:
        multiprocessing.set_forkserver_preload(["hexa.cli", "hexa.session.run", "hexa.methods.moco"])
        context = multiprocessing.get_context("forkserver")
        self._said, theirs = context.Pipe(duplex=False)
        self._begin = time.monotonic()
        self._process = context.Process(target=_work, args=([str(one) for one in arguments], strike, theirs))
        self._process.start()
        theirs.close()

    def ended(self, seconds: float = 300) -> Ended:
        """Wait for the end. All it said is `err`."""
        said = b""
        until = time.monotonic() + seconds
        while self._said.poll(max(0.0, until - time.monotonic())):
            part = os.read(self._said.fileno(), 2**16)
            if not part:
                break
            said += part
        self._process.join(max(0.0, until - time.monotonic()))
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._said.close()
        assert self._process.exitcode is not None
        text = said.decode(errors="backslashreplace")
        return Ended(self._process.exitcode, "", text, time.monotonic() - self._begin)


def struck(*arguments: object, strike: Strike | None = None) -> Ended:
    """Run `hexa ARGUMENTS` to its end, whatever that is."""
    return Started(*arguments, strike=strike).ended()


def _work(arguments: list[str], strike: Strike | None, said: Connection) -> None:
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    said.close()
    torch.set_num_threads(1)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where tests run under nohup
    if strike is not None:
        strike.arm()
    from hexa import cli

    sys.exit(cli.main(arguments))
