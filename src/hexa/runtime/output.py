"""Text for a terminal: printable, and on one line if required."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

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
