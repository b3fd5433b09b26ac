"""The console of all commands, which prints text, never markup, and ignores failures to print."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console as RichConsole, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hexa.runtime.output import Forgiving, printable


class Console(RichConsole):
    """A console on the current standard output or error; silent in all processes but the first.

    Names of files, classes and runs are printed literally, with control characters escaped. Styles are given as `Text`
    or `style=`. Lines are not wrapped; tables and bars fit the width.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        name = "stderr" if stderr else "stdout"
        # a progress bar replaces the stream by a proxy that prints through us
        target = Forgiving(
            lambda: getattr(getattr(sys, name), "rich_proxied_file", getattr(sys, name))
        )
        quiet = os.environ.get("RANK", "0") != "0"
        super().__init__(
            file=cast(TextIO, target), quiet=quiet, markup=False, highlight=False, emoji=False
        )

    def print(self, *objects: Any, **options: Any) -> None:
        lines = bool(objects) and all(isinstance(one, str | Text) for one in objects)
        super().print(*objects, **{"soft_wrap": lines, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):  # of `Text` too
            yield Segment(text, style, control) if control else Segment(printable(text), style)
