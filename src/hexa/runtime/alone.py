"""One process at a time: locks that end with whoever holds them, and processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hexa.config import UserError

_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def alone(lock: Path, what: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file while entered; the system frees it when the process ends, however it does.

    patience: seconds to wait for it. Raises UserError, "process N on MACHINE" and `what`, if another holds it still.
    """
    try:
        import fcntl
    except ImportError:  # no such locks there
        yield
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    file.seek(0)
                    raise UserError(f"process {file.read() or '(unknown)'} {what}") from None
                time.sleep(_POLL_SECONDS)
        try:
            file.truncate(0)
            file.write(f"{os.getpid()} on {platform.node()}")
            file.flush()
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # forked children may have the file open for a moment longer


def end_with(parent: int) -> None:
    """Have this process receive SIGTERM once its parent is gone, killed or not; on Linux, nothing elsewhere."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before this was asked for
        os.kill(os.getpid(), signal.SIGTERM)
