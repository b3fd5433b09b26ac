"""Standard output that nobody reads, that is full, or that can't hold a name: nothing ends for it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from hexa.runtime import output
from hexa.runtime.console import Console
from hexa.runtime.output import Drain, one_line, printable
from hexa.runtime.signals import Interrupts


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("a\x1b[31mb\x07\x9b\r\udcff\u202e") == r"a\x1b[31mb\x07\x9b\r\udcff\u202e"
    assert printable("µ → 犬\n\t[/b] :smile:") == "µ → 犬\n\t[/b] :smile:"
    assert one_line("a\nhexa: error") == r"a\nhexa: error"


def full_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    fcntl.fcntl(writing, fcntl.F_SETFL, 0)
    return reading, writing


def test_a_reader_that_has_gone_and_a_full_disk_are_no_errors() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for descriptor in (writing, os.open("/dev/full", os.O_WRONLY)):
        stream = io.TextIOWrapper(Drain(descriptor), "utf-8", line_buffering=True)  # type: ignore[type-var]
        print("one", file=stream)
        print("two", file=stream, flush=True)
        os.close(descriptor)
        print("three", file=stream)


def test_everything_arrives_in_order_at_a_slow_reader() -> None:
    reading, writing = os.pipe()
    content = os.urandom(300_000)
    found = bytearray()

    def read() -> None:
        while part := os.read(reading, 1000):
            found.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    assert Drain(writing).write(content) == len(content)
    os.close(writing)
    reader.join()
    assert bytes(found) == content


def test_a_reader_that_pauses_is_waited_for_as_long_as_patience_lasts() -> None:
    reading, writing = full_pipe()
    drain = Drain(writing)
    drain.patience = lambda: 0.3
    drain.write(b"lost\n")
    drain.patience = lambda: float("inf")
    begin = time.monotonic()
    drain.write(b"lost as well: it did not read on\n")
    assert time.monotonic() - begin < 5
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.read(reading, 65536)
    drain.write(b"here again\n")
    assert os.read(reading, 100) == b"here again\n"


def test_a_signal_ends_the_waiting_of_work_that_can_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    _, writing = full_pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Drain(writing), "utf-8", line_buffering=True))  # type: ignore[type-var]
    said: list[str] = []
    with Interrupts(said.append) as interrupts:
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        print("a line that nobody reads")
        assert interrupts.received == signal.SIGINT
        assert said == []  # the handler only remembers
        assert interrupts.noticed() == interrupts.noticed() == signal.SIGINT
        assert len(said) == 1
    print("nor is the last line waited for")


def test_drained_keeps_the_streams_of_tests_and_gives_back_what_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with output.drained():
        print("seen")
    assert sys.stdout is before
    assert capsys.readouterr().out == "seen\n"


def test_a_console_prints_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    console = Console()
    table = Table("head [b]", title="[i]title[/i]", box=None)
    table.add_row("cell [/b] \x1b[2J")
    console.print("run[old] [/b] :smile: \udcff")
    console.print(table)
    found = capsys.readouterr().out
    assert "run[old] [/b] :smile: \\udcff\n" in found
    for part in ("head [b]", "[i]title[/i]", "cell [/b] \\x1b[2J"):
        assert part in found


def test_a_console_on_a_stream_that_is_gone_or_closed_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = (tmp_path / "log").open("w")
    closed.close()
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)  # type: ignore[type-var]
    for stream in (closed, full, io.TextIOWrapper(io.BytesIO(), "ascii"), None):
        monkeypatch.setattr(sys, "stderr", stream)
        Console(stderr=True).print("µ [/b]")
    full.detach()
