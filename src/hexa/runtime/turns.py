"""Trainings on one machine take turns in using its cores.

The threads of an operation wait for each other by spinning: OpenMP's for a while, those of oneDNN's weight gradients
without limit. If another process occupies the core of one of them, the rest spin until the scheduler switches, hundreds
of times per step. So a training with n threads locks n cores, and offers them from time to time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch

from hexa.runtime import processes
from hexa.runtime.cores import allowed_cores

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: Shortest turn in seconds, which several short steps share.
_TURN = 0.1
#: Seconds to wait for a turn before working beside a process that does not give way (stopped, or in a long step).
_PATIENCE = 120.0
_POLL = 0.001


@contextmanager
def turns(device: torch.device) -> Iterator[Callable[[], None]]:
    """Lock a core for each of torch's threads; yields a function to call in every step, which lets others go first.

    Has no effect on results. Does nothing on a GPU, on systems without such locks, and if several processes train
    together, since they wait for each other in every step.
    """
    file = None if device.type != "cpu" or processes.helpers() else _open()
    if file is None:
        yield lambda: None
        return
    cores = _Cores(file)
    try:
        cores.take()
        yield cores.offer
    finally:
        os.close(file)  # releases the locks


class _Cores:
    """Locks on a file: byte 1 + n is core n, byte 0 the head of the queue. The system releases them with the process.

    patience: seconds to wait for cores.
    """

    def __init__(self, file: int) -> None:
        self._file, self._numbers = file, allowed_cores()
        self._wanted = min(torch.get_num_threads(), len(self._numbers))
        self._since, self.patience = 0.0, _PATIENCE

    def offer(self) -> None:
        """Give way to others that wait, unless this turn has just begun."""
        if time.monotonic() - self._since >= _TURN:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
            self.take()

    def take(self) -> None:
        """Wait for the cores, first come, first served, however many a process wants."""
        begin, first = time.monotonic(), False
        while True:
            first = first or self._lock(0)
            free = (number for number in self._numbers if self._lock(1 + number))
            if first and len(list(islice(free, self._wanted))) == self._wanted:
                self.patience = _PATIENCE
                break
            if time.monotonic() - begin >= self.patience:
                self.patience = 0.0
                break
            time.sleep(_POLL)
        self._since = time.monotonic()
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, 0)

    def _lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True


def _open() -> int | None:
    """One file for all of a user's processes on this machine; None if it cannot be opened."""
    if fcntl is None:
        return None
    path = Path(tempfile.gettempdir()) / f"hexa-cores-{os.getuid()}"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
