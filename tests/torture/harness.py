"""What torture tests are made of: a tally, work in a child process, and the command line in one."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Kind = Literal["input", "fault"]


@dataclass
class Count:
    """How many inputs or faults of a group were tried, and how many ended as they should."""

    kind: Kind
    group: str
    tried: int = 0
    survived: int = 0


@dataclass
class Tally:
    """The counts of a test run, by kind and group.

    An input survives if it is used, or refused in one line; a fault if nothing is lost and the work can go on.
    """

    counts: dict[tuple[Kind, str], Count] = field(default_factory=dict)

    def input(self, group: str, survived: bool) -> None:
        """One hostile input was tried."""
        self._count("input", group, survived)

    def fault(self, group: str, survived: bool) -> None:
        """One fault was injected."""
        self._count("fault", group, survived)

    def _count(self, kind: Kind, group: str, survived: bool) -> None:
        self.add(kind, group, 1, int(survived))

    def add(self, kind: Kind, group: str, tried: int, survived: int) -> None:
        """Several of a group, counted elsewhere."""
        count = self.counts.setdefault((kind, group), Count(kind, group))
        count.tried += tried
        count.survived += survived


@dataclass(frozen=True)
class Ended:
    """How a child process ended. code: its exit status, negative for a signal."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def complaint(self) -> str | None:
        """Why this is not the refusal of a bad input in one line with status 2; None if it is."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        if self.code != 2:
            return f"status {self.code}: {self.err[-2000:]}"
        if "Traceback" in self.err or not lines or not lines[-1].startswith("hexa: error: "):
            return f"not one line: {self.err[-2000:]}"
        return None


def hexa(
    *arguments: object,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limits: Mapping[int, int] | None = None,
    seconds: float = 120,
) -> Ended:
    """Run the real command line. limits: of `resource`, such as {RLIMIT_FSIZE: bytes}."""

    def confine() -> None:
        for limit, value in (limits or {}).items():
            resource.setrlimit(limit, (value, value))

    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "hexa", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
        preexec_fn=confine,
        check=False,
    )
    out, err = (text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr))
    return Ended(done.returncode, out, err, time.monotonic() - begin)


@dataclass(frozen=True)
class Forked:
    """What a function did in a forked child. value: what it returned, or the error it raised, if it did either."""

    signal: int | None
    value: Any
    raised: BaseException | None
    seconds: float
    megabytes: float
    """The most memory that the child used beyond what it began with; 0 if it died."""


def forked(work: Callable[[], Any], seconds: float = 30) -> Forked:
    """Run `work` in a copy of this process, which may die of it; milliseconds, since nothing is imported anew."""
    torch.set_num_threads(1)  # a forked child has no other threads to wait for
    reading, writing = os.pipe()
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing, seconds)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    value, raised, megabytes = pickle.loads(content) if content else (None, None, 0.0)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return Forked(ended_by, value, raised, time.monotonic() - begin, megabytes)


def _answer(work: Callable[[], Any], writing: int, seconds: float) -> None:
    """In the child: do the work, answer, and end without any of the parent's clean-up."""
    faulthandler.disable()  # pytest's would print a page for every death
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _megabytes("VmRSS")
    try:
        value, raised = None, None
        try:
            value = work()
        except BaseException as error:
            raised = error
        used = _megabytes("VmHWM") - before
        with contextlib.suppress(Exception), os.fdopen(writing, "wb") as pipe:
            try:
                pipe.write(pickle.dumps((value, raised, used)))
            except Exception:
                pipe.write(pickle.dumps((None, RuntimeError(repr(raised or value)), used)))
    finally:
        os._exit(0)


def _megabytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def damaged(content: bytes, generator: Any, others: Iterable[bytes] = ()) -> bytes:
    """A truncated, flipped or spliced copy, drawn by a `random.Random`."""
    others = list(others)
    kind = generator.choice(("cut", "flip", "flip", "splice", "zero", "grow"))
    data = bytearray(content)
    at = generator.randrange(len(data))
    if kind == "cut":
        return bytes(data[:at])
    if kind == "splice" and others:
        other = generator.choice(others)
        return bytes(data[:at]) + other[generator.randrange(len(other)) :]
    if kind == "zero":
        data[at : at + generator.randrange(1, 64)] = bytes(generator.randrange(1, 64))
        return bytes(data)
    if kind == "grow":
        return bytes(data[:at]) + generator.randbytes(generator.randrange(1, 256)) + bytes(data[at:])
    for _ in range(generator.choice((1, 1, 4, 32))):
        data[generator.randrange(len(data))] = generator.randrange(256)
    return bytes(data)
