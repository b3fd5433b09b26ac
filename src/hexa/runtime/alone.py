"""One process at a time: locks that end with whoever holds them, and processes that end with their parent."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from hexa.config import UserError

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: What a disk that other machines share answers if it has no locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
#: Lock files that this process has open.
_open: weakref.WeakSet[FileIO] = weakref.WeakSet()


@contextmanager
def alone(
    lock: Path, what: str, *, patience: float = 0.0, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Hold a lock file while entered; the system frees it when the process ends, however it does.

    A lock belongs to this process: children that it forks, and that outlive it, don't hold it. The file is removed
    afterwards, and so are folders that were made for it and that nothing else was put into.
    patience: seconds to wait for it. say: told where the disk has no locks, so that nobody is kept out.
    Raises UserError, "process N on MACHINE" and `what`, if another holds it still; OSError if it can't be written.
    """
    made = [folder for folder in lock.parents if not folder.exists()]
    try:
        file = _take(lock, what, patience)
        try:
            if file is None and say is not None:
                say(f"{lock.parent}: its disk has no file locks, so see that no other process works there")
            yield
        finally:
            if file is not None and not file.closed:  # as it is in a forked child
                if _is_at(file, lock):  # while it is held: nobody may take a file that is about to go
                    with suppress(OSError):
                        lock.unlink()
                fcntl.flock(file, fcntl.LOCK_UN)  # a child may be between fork and exec
                file.close()
    finally:
        with suppress(OSError):  # something was put there
            for folder in made:
                folder.rmdir()


def _take(lock: Path, what: str, patience: float) -> FileIO | None:
    """The lock file, locked; None if there are no locks here."""
    if fcntl is None:
        return None
    until = time.monotonic() + patience
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except FileNotFoundError:  # whoever had it took the folder away
            continue
        file = os.fdopen(handle, "rb+", buffering=0)
        _open.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read().decode(errors="replace") or "(unknown)"
            if time.monotonic() >= until:
                raise UserError(f"process {holder} {what}") from None
            time.sleep(_POLL_SECONDS)
            continue
        except OSError as error:
            file.close()
            if error.errno not in _WITHOUT_LOCKS:
                raise
            with suppress(OSError):
                lock.unlink()
            return None
        if _is_at(file, lock):
            with suppress(OSError):  # a full disk: it is held all the same
                file.truncate(0)
                file.write(f"{os.getpid()} on {platform.node()}".encode())
            return file
        file.close()  # whoever had it removed it


def _is_at(file: FileIO, path: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _let_go() -> None:
    """In a forked child: a lock lasts as long as any copy of its file is open."""
    for file in list(_open):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def end_with(parent: int) -> None:
    """Have this process receive SIGTERM once its parent is gone, killed or not; on Linux, nothing elsewhere."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before this was asked for
        os.kill(os.getpid(), signal.SIGTERM)
