"""Standard output and error that never fail; text that cannot be written is dropped."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

#: Escape sequences, other control characters (a line may end, a tab stay), direction marks, halves of characters.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` with escapes (\\x1b, \\udcff) for what a terminal would interpret or an encoding cannot represent."""
    return _UNPRINTABLE.sub(
        lambda match: match[0].encode("unicode-escape", "surrogatepass").decode(), text
    )


def one_line(text: str) -> str:
    """`printable` with escaped line ends, which names of files and classes may contain."""
    return printable(text).replace("\n", "\\n")


def say(line: str) -> None:
    """Write a line for whoever watches to standard error."""
    print(f"hexa: {line}", file=sys.stderr)


class Forgiving:
    """A text stream; what it does not accept is lost: its reader is gone, the disk full, a character unknown to it.

    stream: asked for at every use; None if there is no stream.
    """

    def __init__(self, stream: Callable[[], Any]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, name: str, *given: str) -> None:
        stream = self._stream()
        with suppress(
            AttributeError, ValueError
        ):  # None; closed, or a character that its encoding lacks
            try:
                getattr(stream, name)(*given)
            except (
                OSError
            ):  # what waits in its buffer would fail again, at the latest when Python ends
                with suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


@contextmanager
def forgiving() -> Iterator[None]:
    """Replace sys.stdout and sys.stderr by versions that never fail and write each line when it ends."""
    for descriptor in (0, 1, 2):  # or the next file that is opened would become standard output
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    stdout, stderr = before
    sys.stdout = cast(TextIO, Forgiving(lambda: stdout))
    sys.stderr = cast(TextIO, Forgiving(lambda: stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
