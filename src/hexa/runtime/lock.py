"""A file lock that is released when its process ends, for whatever reason."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hexa.config import UserError

#: Number of attempts to create a folder that other processes remove.
_TRIES = 1000
#: Errors of a network disk without locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def locked(
    path: Path,
    what: str,
    *,
    patience: float = 0.0,
    say: Callable[[str], object] = lambda message: None,
) -> Iterator[None]:
    """Hold a lock file inside the context; the system releases it when the process ends, for
    whatever reason.

    The file is removed afterwards, and so are empty folders that were created for it.
    patience: seconds to wait for the lock.
    say: called with a message if the disk has no locks.
    Raises UserError, "process N on MACHINE" and `what`, if another process holds the lock; OSError
    if it cannot be written.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        lock = _taken(path, what, patience, say)
        try:
            yield
        finally:
            if lock is not None and lock.is_locked:  # a forked child does not hold it
                with suppress(OSError):
                    path.unlink()  # before release, so that waiting processes notice the removal
                lock.release()
    finally:
        with suppress(OSError):  # a folder is not empty any more
            for folder in made:
                folder.rmdir()


def _taken(path: Path, what: str, patience: float, say: Callable[[str], object]) -> FileLock | None:
    """Acquire the lock; return None if the disk has no locks."""
    lock = FileLock(path, timeout=patience, fallback_to_soft=False)
    for tries in range(_TRIES, 0, -1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            break
        except Timeout:
            holder = path.read_text(errors="replace") if path.is_file() else ""
            raise UserError(f"process {holder or '(unknown)'} {what}") from None
        except (
            FileNotFoundError,
            FileExistsError,
        ):  # the previous holder removed the folder, maybe during mkdir
            if tries == 1:  # a file or a dangling link has the folder's name
                raise
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            with suppress(OSError):
                path.unlink()
            say(f"{path.parent}: its disk has no file locks; let no other process work there")
            return None
    with suppress(OSError):  # the lock is held even if the disk is full
        path.write_text(f"{os.getpid()} on {platform.node()}")
    return lock
