"""Progress where there is no terminal: a line now and then, with the time left."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from hexa.runtime import progress


def test_lines_come_now_and_then_and_tell_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    written = io.StringIO()
    with progress.ProgressBar(Console(file=written, width=200)) as bar:
        for label, resumed in (
            ("training", 500),
            ("detecting", 0),
            ("detecting", 0),
        ):  # the last once more
            for done in range(resumed + 1, resumed + 21):
                clock[0] += 3
                bar(label, done, resumed + 100)
    lines = written.getvalue().splitlines()
    assert len(lines) == 12  # of 180 seconds, every 15
    assert lines[0] == "training: 505 of 600 · 4:45 left"  # 95 at 3 seconds each
    assert lines[4] == "detecting: 5 of 100 · 4:45 left"
    assert lines[8] == "detecting: 5 of 100 · 4:45 left"


def test_stages_of_unknown_length_are_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.ProgressBar(Console(file=written, width=200)) as bar:
        for stage in ("reading", "writing"):
            clock[0] += 60
            bar(stage, 0, 0)
    assert written.getvalue() == "reading …\nwriting …\n"


def test_the_time_left_of_a_run_does_not_count_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    reporter = progress.Reporter(Console(file=written, width=200))
    reporter.begin(100, done=10)
    for step, seconds in ((11, 60), (21, 70), (31, 75), (100, 200)):
        clock[0] = seconds
        reporter.metrics(step, {"epoch": 0.5})
    clock[0], reporter.end = 210, 240.0  # from now on the clock decides
    reporter.metrics(90, {"epoch": 0.5})
    left = [line.partition(" · epoch 0.5")[2] for line in written.getvalue().splitlines()]
    assert [said in written.getvalue() for said in ("step 11/100 · ", "step 90 · ")] == [True, True]
    assert left == ["", " · 1:19 left", " · 0:52 left", " · 0:00 left", " · 0:30 left"]


def test_names_are_text_whatever_the_console() -> None:
    written = io.StringIO()
    console = Console(file=written, width=40)  # anybody's own, which takes markup
    progress.Reporter(console).say("run[old] [/b] :smile: " + "x" * 60 + "\nhexa: done")
    bar = progress.ProgressBar(console)
    bar.PAUSE = 0.0
    bar("of [/b]\x1b[2J", 1, 10)
    assert (
        written.getvalue()
        == "run[old] [/b] :smile: " + "x" * 60 + "\\nhexa: done\nof [/b]\\x1b[2J: 1 of 10\n"
    )


def test_a_stage_is_told_at_once_and_a_bar_tells_steps_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    progress.ProgressBar(Console(file=written, width=200))("drawing", 0, 0)
    assert written.getvalue() == "drawing …\n"
    clock = [0.0]
    bars = progress._progress(console := Console(file=io.StringIO(), force_terminal=True, width=80))
    bars.get_time = lambda: clock[0]
    task = bars.add_task(
        "epoch 0.1 · loss 4.123 · 12 images/s · 34% waiting", total=400, unit="step "
    )
    for step in range(7):
        clock[0] = 10.0 * step
        bars.update(task, completed=step)
    console.print(bars.make_tasks_table(bars.tasks))
    assert re.search(
        r"^epoch 0\.1 .*… .* step 6 of 400 · 1:05:40 left *\n$", console.file.getvalue()
    )
