"""Text for a terminal: printable, and on one line where it must be."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

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
    """Write a line to standard error; a closed or full one ends nothing."""
    with suppress(OSError, ValueError):
        print(f"hexa: {line}", file=sys.stderr)
