"""The console of all commands, which prints plain text, never markup, and ignores failures to
print; printable text; and the progress display, a bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console as RichConsole, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress as Bars, ProgressColumn, Task, TextColumn
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

#: Seconds between two plain lines for a run.
_PAUSE = 5.0
#: Control characters except line feeds and tabs, escape sequences, direction marks, surrogates.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Escape (\\x1b, \\udcff) characters that a terminal would interpret or an encoding lacks."""
    return _UNPRINTABLE.sub(
        lambda match: match[0].encode("unicode-escape", "surrogatepass").decode(), text
    )


def one_line(text: str) -> str:
    """`printable`, with escaped line feeds, which names of files and classes may contain."""
    return printable(text).replace("\n", "\\n")


def say(line: str) -> None:
    """Write a line to standard error; ignore a closed stream or a full disk."""
    with suppress(OSError, ValueError):
        print(f"hexa: {line}", file=sys.stderr)


class Console(RichConsole):
    """A console on the current standard output or error; silent in all processes except the first.

    Names of files, classes and runs are printed literally, with control characters escaped. Styles
    are set with `Text` or `style=`. Lines are not wrapped; tables and bars fit the width.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        quiet = os.environ.get("RANK", "0") != "0"
        super().__init__(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        lines = bool(objects) and all(isinstance(one, str | Text) for one in objects)
        super().print(*objects, **{"soft_wrap": lines, **options})

    def on_broken_pipe(self) -> None:
        self.quiet = True

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except (OSError, ValueError):  # a full disk or a closed stream must not end a training
            del self._buffer[:]

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self,
        renderable: RenderableType,
        options: ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):  # of `Text` too
            yield Segment(text, style, control) if control else Segment(printable(text), style)


Progress = Callable[[str, int, int], None]
"""Progress callback: (stage, done, total); total is 0 if unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """Progress callback that does nothing."""


class ProgressBar:
    """Progress of work with several parts, such as an evaluation: one bar per part, or occasional
    lines."""

    PAUSE = 15.0
    """Seconds between two lines."""

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._said = time.monotonic()
        self._progress = _progress(console)
        self._tasks: dict[str, Task] = {}

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show the progress of the part with this label. total: 0 if unknown."""
        now = time.monotonic()
        if label not in self._tasks:
            for task in self._progress.tasks:  # stages of unknown length are finished
                self._progress.update(task.id, visible=task.total is not None)
            self._progress.add_task(one_line(label), total=total or None, first=done, begin=now)
            self._tasks[label] = self._progress.tasks[-1]
            if not done and not self._console.is_terminal:
                _print(self._console, f"{label} …")
        task = self._tasks[label]
        if done < task.completed:  # it was restarted
            task.fields |= {"first": done, "begin": now}
        self._progress.update(task.id, completed=done, total=total or None)
        if self._console.is_terminal or not total or now - self._said < self.PAUSE:
            return
        self._said = now
        first = task.fields["first"]
        seconds = (now - task.fields["begin"]) / max(1, done - first) * (total - done)
        left = f" · {_duration(seconds)} left" if done > first else ""
        _print(self._console, f"{label}: {done:,} of {total:,}{left}")


class Reporter:
    """Shows a run's steps; silent without a console."""

    def __init__(self, console: RichConsole | None = None) -> None:
        self._console = console or RichConsole(quiet=True)
        self._progress = _progress(self._console)
        self._total = 0
        self._shown = 0.0
        self._timed: tuple[int, float] | None = None
        #: End of a run with a time limit, on the clock `time.monotonic`; None without a limit.
        self.end: float | None = None

    def begin(self, total: int, done: int = 0) -> None:
        """Start the display of steps, some of which may already be done."""
        self._total = total
        self._shown = time.monotonic() - _PAUSE
        self._progress.add_task("training", total=total, completed=done, unit="step ")
        self._progress.start()

    def step(self, step: int, total: int | None = None, **fields: str) -> None:
        """Show that a step is done. total: the new number of steps, if it has changed."""
        self._total = total or self._total
        for task in self._progress.task_ids:
            self._progress.update(task, completed=step, total=self._total, end=self.end, **fields)  # type: ignore[arg-type]

    def metrics(self, step: int, line: Mapping[str, object]) -> None:
        """Show a line of metrics."""
        said = (
            form.format(line[name])
            for name, form in _SHOWN.items()
            if isinstance(line.get(name), int | float)
        )
        text = " · ".join(said)
        now = time.monotonic()
        self.step(step, description=text)
        if self._console.is_terminal or (now - self._shown < _PAUSE and step < self._total):
            return
        self._shown = now
        first, begin = self._timed = self._timed or (step, now)  # the first steps take longer
        seconds = (
            (now - begin) / max(1, step - first) * (self._total - step)
            if self.end is None
            else self.end - now
        )
        left = f" · {_duration(max(0.0, seconds))} left" if step > first else ""
        # with a time limit, the total changes with each estimate
        of = f"/{self._total}" if self.end is None or step >= self._total else ""
        self.say(f"step {step}{of} · {text}{left}")

    def say(self, message: str) -> None:
        """Print a line above the bar."""
        _print(self._console, message)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def _progress(console: RichConsole) -> Bars:
    """Return a bar for a terminal; elsewhere nothing is drawn."""
    # in a narrow terminal, cut the description, not the time left
    name = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)
    )
    parts = name, BarColumn(bar_width=10), _Left(Column(no_wrap=True))
    hidden = console.quiet or not console.is_terminal
    # steps may take many seconds, and steps that train only the head are faster than later ones
    return Bars(
        *parts,
        console=console,
        transient=True,
        expand=True,
        disable=hidden,
        speed_estimate_period=120.0,
    )


class _Left(ProgressColumn):
    """`step 6 of 400 · 3:52 left`."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        end = task.fields.get("end")
        seconds = task.time_remaining if end is None else end - time.monotonic()
        left = f" · {_duration(max(0.0, seconds))} left" if seconds else ""
        of = f" of {task.total:,.0f}" if end is None else ""
        return Text(f"{task.fields.get('unit', '')}{task.completed:,.0f}{of}{left}")


def _print(console: RichConsole, line: str) -> None:
    """Print as `Text`, which is never markup."""
    console.print(Text(one_line(line)), soft_wrap=True)


#: Metrics to show, with their formats.
_SHOWN = {
    "epoch": "epoch {:.1f}",
    "loss": "loss {:.3f}",
    "images_per_second": "{:.0f} images/s",
    "data_wait": "{:.0%} waiting for data",
}


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
