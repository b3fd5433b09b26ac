"""A file lock that is released when its process ends, in whatever way.

The package filelock leaves its files behind and does not tell who holds a lock.
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
#: How often a folder is made that others remove.
_TRIES = 1000
#: Errors of a network disk without locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
#: Lock files that this process has open.
_open: weakref.WeakSet[FileIO] = weakref.WeakSet()


@contextmanager
def locked(
    path: Path, what: str, *, patience: float = 0.0, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Hold a lock file inside the context; the system releases it when the process ends, in whatever way.

    Forked children that outlive this process do not hold the lock. The file is removed afterwards, and so are folders
    that were created for it and are empty. patience: seconds to wait for it. say: called if the disk has no locks.
    Raises UserError, "process N on MACHINE" and `what`, if another process still holds it; OSError if it cannot be
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
            if file is not None and not file.closed:  # it is closed in a forked child
                if _is_at(file, path):  # removed while held, so that nobody locks a file that is about to go
                    with suppress(OSError):
                        path.unlink()
                fcntl.flock(file, fcntl.LOCK_UN)  # a child may be between fork and exec
                file.close()
    finally:
        with suppress(OSError):  # something was put there
            for folder in made:
                folder.rmdir()


def _take(path: Path, what: str, patience: float) -> FileIO | None:
    """The lock file, locked; None if the disk has no locks."""
    if fcntl is None:
        return None
    until, tries = time.monotonic() + patience, _TRIES
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except (FileNotFoundError, FileExistsError):  # a holder removed the folder, maybe while mkdir looked at it
            tries -= 1
            if not tries:  # a file or a dangling link is in its place
                raise
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
            with suppress(OSError):  # on a full disk it is held nevertheless
                file.truncate(0)
                file.write(f"{os.getpid()} on {platform.node()}".encode())
            return file
        file.close()  # the holder removed it


def _is_at(file: FileIO, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _let_go() -> None:
    """Close lock files in a forked child, since a lock lasts as long as any copy of its file is open."""
    for file in list(_open):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
