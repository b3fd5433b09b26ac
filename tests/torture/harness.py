"""Tools for torture tests: a tally, work in a child process, the command line in one, and a look at
a source."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.sources.decode import DecodeError
from hexa.runtime.packages import commit
from hexa.runtime.resources import return_freed_memory
from hexa_paper.detection.images import boxes_of

MEGABYTES = 400
"""More than a look at any of these small files may take."""


@dataclass
class Tally:
    """Number of inputs and faults that were tried, and that survived: [tried, survived] by (kind,
    group).

    An input survives if it is used, or refused in one line; a fault survives if nothing is lost and
    the work can be resumed.
    """

    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def input(self, group: str, survived: object, said: object = "") -> None:
        """Count a hostile input. Fails, with what was said, if it did not survive."""
        self._count("input", group, survived, said)

    def fault(self, group: str, survived: object, said: object = "") -> None:
        """Count a fault. Fails, with what was said, if anything is lost."""
        self._count("fault", group, survived, said)

    def _count(self, kind: str, group: str, survived: object, said: object) -> None:
        self.add([{"kind": kind, "group": group, "tried": 1, "survived": int(bool(survived))}])
        assert survived, said

    def add(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Add counts from another process."""
        for one in groups:
            counts = self.counts.setdefault((one["kind"], one["group"]), [0, 0])
            counts[0] += one["tried"]
            counts[1] += one["survived"]

    def groups(self) -> list[dict[str, Any]]:
        rows = sorted(self.counts.items())
        return [
            {"kind": kind, "group": group, "tried": n[0], "survived": n[1]}
            for (kind, group), n in rows
        ]

    def write(self, path: Path, status: int) -> None:
        """The counts and what they were made with. commit: ends in -dirty if files differ. status: 0 if all is well."""
        made = {
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "command": "make torture",
            "status": status,
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "groups": self.groups(),
        }
        content = json.dumps(made, indent=2, ensure_ascii=False)
        path.write_text(content + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Ended:
    """The end of a child process. code: its exit status, negative for a signal."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str | None:
        """Why this is not the refusal of a bad input in one line with status 2; None if it is."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        if self.code != 2:
            return f"status {self.code}: {self.err[-2000:]}"
        if "Traceback" in self.err or not lines or not lines[-1].startswith("hexa: error: "):
            return f"not one line: {self.err[-2000:]}"
        return None


@dataclass(frozen=True)
class Forked:
    """The end of a function in a forked child. value: its result, or the error that it raised, if
    any."""

    signal: int | None
    value: Any
    raised: BaseException | None
    megabytes: float
    """The most memory that the child used beyond what it began with; 0 if it died."""


def forked(work: Callable[[], Any], seconds: float = 30) -> Forked:
    """Run `work` in a copy of this process, which may die; this takes milliseconds, since nothing
    is imported again."""
    torch.set_num_threads(1)  # a forked child has no other threads to wait for
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing, seconds)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    answer = pickle.loads(content) if content else (None, None, 0.0)
    return Forked(os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, *answer)


def _answer(work: Callable[[], Any], writing: int, seconds: float) -> None:
    """In the child: do the work, answer, and end without any of the parent's clean-up."""
    faulthandler.disable()  # pytest's would print a page for every death
    return_freed_memory()  # which the parent keeps: the work would grow into it unseen
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _megabytes("VmRSS")
    try:
        value = None
        raised = None
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


def _overwritten(data: bytes, place: slice) -> bytes:
    """A copy whose bytes at this place, such as every 50th, are others."""
    copy = bytearray(data)
    copy[place] = bytes(byte ^ 0x55 for byte in data[place])
    return bytes(copy)


#: One of each kind of damage to a file; benchmarks/fuzz.py draws others.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "header": lambda data: _overwritten(data, slice(12, 20)),
    "middle": lambda data: _overwritten(data, slice(len(data) // 2, len(data) // 2 + 4)),
    "peppered": lambda data: _overwritten(data, slice(60, -20, 50)),
    "spliced": lambda data: data[: len(data) // 2] + data[len(data) // 4 :],
}


def look(spec: str) -> str:
    """Open a source, read all its images and boxes, and say what there was, or why it was refused."""
    try:
        source = open_source(spec)
    except UserError as error:
        return f"refused: {error}"
    wrong = 0
    for index in range(len(source)):
        try:
            assert source.decode(index).shape[0] == 3
        except DecodeError as error:
            if "\n" in str(error):
                raise
            wrong += 1
    assert len(source.fingerprint) == 16
    labels = "no labels" if source.labels is None else f"labels {source.labels.tolist()}"
    names = "" if source.class_names is None else f" of {source.class_names}"
    said = f"{len(source)} images, {wrong} unreadable, {labels}{names}"
    if spec.startswith("voc:"):
        try:
            boxes_of(source)
        except UserError as error:
            return f"{said}; boxes refused: {error}"
    return said


def outcome(spec: str) -> tuple[str, str | None]:
    """Return the result of a look in a child process, and a complaint if it ended the child or took
    too much."""
    found = forked(lambda: look(spec), 20)
    if found.signal is not None or found.raised is not None:
        return "", f"{spec}: signal {found.signal}, raised {found.raised!r}"
    wrong = "\n" in found.value or found.megabytes > MEGABYTES
    return found.value, f"{spec}: {found.megabytes:.0f} MB, {found.value}" if wrong else None
