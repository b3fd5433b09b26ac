"""Progress without a terminal: occasional lines with the time left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hexa.runtime import console


def test_progress_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left of a run does not count its start."""
    clock = [0.0]
    written = io.StringIO()
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    reporter = console.Reporter(Console(file=written, width=200))
    reporter.begin(100, done=10)
    for step, seconds in ((11, 60), (21, 70), (31, 75), (100, 200)):
        clock[0] = seconds
        reporter.metrics(step, {"epoch": 0.5})
    clock[0], reporter.end = 210, 240.0  # from now on the clock decides
    reporter.metrics(90, {"epoch": 0.5})
    left = [line.partition(" · epoch 0.5")[2] for line in written.getvalue().splitlines()]
    assert [said in written.getvalue() for said in ("step 11/100 · ", "step 90 · ")] == [True, True]
    assert left == ["", " · 1:19 left", " · 0:52 left", " · 0:00 left", " · 0:30 left"]
