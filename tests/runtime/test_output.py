"""Text for a terminal, and consoles that nobody reads, that are full, or that can't hold a name."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from hexa.runtime.console import Console
from hexa.runtime.output import one_line, printable, say


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("a\x1b[31mb\x07\x9b\r\udcff\u202e") == r"a\x1b[31mb\x07\x9b\r\udcff\u202e"
    assert printable("µ → 犬\n\t[/b] :smile:") == "µ → 犬\n\t[/b] :smile:"
    assert one_line("a\nhexa: error") == r"a\nhexa: error"


def unread() -> io.TextIOWrapper:
    """A pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    return io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True)  # type: ignore[type-var]


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
    for stream in (closed, full, unread(), io.TextIOWrapper(io.BytesIO(), "ascii"), None):
        monkeypatch.setattr(sys, "stderr", stream)
        console = Console(stderr=True)
        console.print("µ [/b]")
        console.print("and again")
        say("a note")
    full.detach()
