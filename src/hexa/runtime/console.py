"""The console of all commands, which prints text, never markup, and ignores failures to print."""

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
    """A console on the current standard output or error; silent in all processes but the first.

    Names of files, classes and runs are printed literally, with control characters escaped. Styles are given as `Text`
    or `style=`. Lines are not wrapped; tables and bars fit the width.
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
    """The current sys.stdout or sys.stderr; text that cannot be written is dropped."""

    def __init__(self, stderr: bool) -> None:
        self._name = "stderr" if stderr else "stdout"

    @property
    def _stream(self) -> Any:
        stream = getattr(sys, self._name)
        return getattr(
            stream, "rich_proxied_file", stream
        )  # a progress bar replaces it by a proxy that prints through us

    def write(self, text: str) -> int:
        # it is None, closed, on a full disk, or its encoding lacks a character
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
