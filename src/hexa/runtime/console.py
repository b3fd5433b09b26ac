"""The console of all commands: it prints plain text, never markup, and ignores failures to
print."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hexa.runtime.output import printable


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
