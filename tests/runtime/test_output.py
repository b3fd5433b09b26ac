"""Standard output that nobody reads, that is full, or that can't hold a name: nothing ends for it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, cast

import pytest

from hexa.runtime import output
from hexa.runtime.console import Console
from hexa.runtime.output import Forgiving, one_line, printable


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("a\x1b[31mb\x07\x9b\r\udcff\u202e") == r"a\x1b[31mb\x07\x9b\r\udcff\u202e"
    assert printable("µ → 犬\n\t[/b] :smile:") == "µ → 犬\n\t[/b] :smile:"
    assert one_line("a\nhexa: error") == r"a\nhexa: error"


def unread() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    "opened", [unread, lambda: os.open("/dev/full", os.O_WRONLY)], ids=["no reader", "full disk"]
)
def test_a_reader_that_has_gone_and_a_full_disk_are_no_errors(opened: Callable[[], int]) -> None:
    with os.fdopen(opened(), "w") as stream:  # whose buffer is flushed once more when it is closed
        forgiving = cast(TextIO, Forgiving(lambda: stream))
        print("one", file=forgiving)
        print("two", file=forgiving, flush=True)
        assert os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
        print("three", file=forgiving, flush=True)


def test_streams_are_replaced_for_a_while_and_write_whole_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.stdout
    with output.forgiving():
        print("seen")
        assert sys.stdout is not before
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
