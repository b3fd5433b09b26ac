"""The console of all commands: it prints text, never markup, and a failure to print ends nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hexa.runtime.output import printable


class Console(RichConsole):
    """On standard output or error, whatever they are at the time; silent in all processes but the first.

    Names of files, classes and runs are printed as they are, but for control characters, which are escaped. Styles are
    given as `Text` or `style=`. Lines are as long as they are; tables and bars fit the width.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        target, quiet = cast(TextIO, _Standard(stderr)), os.environ.get("RANK", "0") != "0"
        super().__init__(file=target, quiet=quiet, markup=False, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        lines = bool(objects) and all(isinstance(one, str | Text) for one in objects)
        super().print(*objects, **{"soft_wrap": lines, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):  # of `Text` too
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)


class _Standard:
    """sys.stdout or sys.stderr as it is at the time of writing; what it doesn't take is dropped."""

    def __init__(self, stderr: bool) -> None:
        self._name = "stderr" if stderr else "stdout"

    @property
    def _stream(self) -> Any:
        stream = getattr(sys, self._name)
        return getattr(stream, "rich_proxied_file", stream)  # what a progress bar puts in its place prints through us

    def write(self, text: str) -> int:
        # there is none, a disk is full, it has been closed, it can't hold a character
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
