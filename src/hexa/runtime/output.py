"""Standard output and error that never fail; text that cannot be written is dropped."""

from __future__ import annotations

import io
import math
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

#: Bytes that can be written without blocking whenever `select` reports that writing is possible.
_CHUNK = getattr(select, "PIPE_BUF", 512)
_POLL_SECONDS = 0.2
#: Escape sequences, other control characters (a line may end, a tab stay), direction marks, halves of characters.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with escapes (\\x1b, \\udcff) for what a terminal would interpret or an encoding cannot represent."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode-escape", "surrogatepass").decode(), text)


def one_line(text: str) -> str:
    """`printable` with escaped line ends, which names of files and classes may contain."""
    return printable(text).replace("\n", "\\n")


class Drain(io.RawIOBase):
    """A writable file descriptor that never fails: what a full disk or a closed pipe does not accept is lost.

    patience: seconds to wait for a reader that pauses, called again while waiting. A reader that was too slow is not
    waited for until it continues.
    """

    def __init__(self, descriptor: int) -> None:
        self.patience: Callable[[], float] = lambda: math.inf
        self._descriptor = descriptor
        self._behind = False

    def write(self, data: Any) -> int:
        waiting = bytes(data)
        length = len(waiting)
        try:
            while waiting and self._takes_some():
                waiting = waiting[os.write(self._descriptor, waiting[:_CHUNK]) :]
        except OSError:
            pass
        return length

    def _takes_some(self) -> bool:
        waited = 0.0
        while not select.select([], [self._descriptor], [], 0.0 if self._behind else _POLL_SECONDS)[1]:
            waited += _POLL_SECONDS
            self._behind = self._behind or waited > self.patience()
            if self._behind:
                return False
        self._behind = False
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


@contextmanager
def drained() -> Iterator[None]:
    """Replace sys.stdout and sys.stderr by versions that never fail, unless somebody else has replaced them."""
    if os.name != "posix":  # elsewhere select supports only sockets
        yield
        return
    for descriptor in (0, 1, 2):  # or the next file that is opened would become standard output
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    try:
        if sys.stdout is sys.__stdout__:
            sys.stdout = _drained(sys.stdout, 1)
        if sys.stderr is sys.__stderr__:
            sys.stderr = _drained(sys.stderr, 2)
        yield
    finally:
        sys.stdout, sys.stderr = before


def _drained(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None:
        descriptor = stream.fileno()
    drain = cast(Any, Drain(descriptor))  # a raw stream instead of a buffered one, as with python -u
    encoding = stream.encoding if stream is not None else "utf-8"
    return io.TextIOWrapper(drain, encoding, "backslashreplace", line_buffering=True)


def be_patient(patience: Callable[[], float]) -> None:
    """Set how many seconds a reader that pauses may block this process; `patience` is called again while it does."""
    for stream in (sys.stdout, sys.stderr):
        drain = getattr(getattr(stream, "rich_proxied_file", stream), "buffer", None)
        if isinstance(drain, Drain):
            drain.patience = patience
