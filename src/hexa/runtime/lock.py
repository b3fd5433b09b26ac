"""One process at a time: a lock that ends with the process that holds it.

The package filelock leaves its files behind and does not say who holds a lock.
"""

from __future__ import annotations

import errno
import os
import platform
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
#: What a network disk answers if it has no locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
#: Lock files that this process has open.
_open: weakref.WeakSet[FileIO] = weakref.WeakSet()


@contextmanager
def locked(
    path: Path, what: str, *, patience: float = 0.0, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Hold a lock file while entered; the system frees it when the process ends, however it does.

    Children that this process forks, and that outlive it, don't hold the lock. The file is removed afterwards, and so
    are folders that were made for it and that nothing else was put into.
    patience: seconds to wait for it. say: called if the disk has no locks.
    Raises UserError, "process N on MACHINE" and `what`, if another process still holds it; OSError if it can't be
    written.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        file = _take(path, what, patience)
        try:
            if file is None and say is not None:
                say(f"{path.parent}: its disk has no file locks, so make sure that no other process works there")
            yield
        finally:
            if file is not None and not file.closed:  # as it is in a forked child
                if _is_at(file, path):  # while it is held: no process may take a file that is about to go
                    with suppress(OSError):
                        path.unlink()
                fcntl.flock(file, fcntl.LOCK_UN)  # a child may be between fork and exec
                file.close()
    finally:
        with suppress(OSError):  # something was put there
            for folder in made:
                folder.rmdir()


def _take(path: Path, what: str, patience: float) -> FileIO | None:
    """The lock file, locked; None if there are no locks here."""
    if fcntl is None:
        return None
    until = time.monotonic() + patience
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except FileNotFoundError:  # the holder removed the folder
            continue
        file = os.fdopen(handle, "rb+", buffering=0)
        _open.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
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
                path.unlink()
            return None
        if _is_at(file, path):
            with suppress(OSError):  # a full disk: it is held all the same
                file.truncate(0)
                file.write(f"{os.getpid()} on {platform.node()}".encode())
            return file
        file.close()  # the holder removed it


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
