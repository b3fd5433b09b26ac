"""A file lock that is released when its process ends, in whatever way."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hexa.config import UserError

#: How often a folder is made that others remove.
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
    """Hold a lock file inside the context; the system releases it when the process ends, in whatever way.

    The file is removed afterwards, and so are folders that were created for it and are empty. patience: seconds to wait
    for it. say: called if the disk has no locks. Raises UserError, "process N on MACHINE" and `what`, if another
    process still holds it; OSError if it cannot be written.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        lock = _taken(path, what, patience, say)
        try:
            yield
        finally:
            if lock is not None and lock.is_locked:  # it is not in a forked child
                with suppress(OSError):
                    path.unlink()  # while it is held: whoever opened it before finds that it has lost its name
                lock.release()
    finally:
        with suppress(OSError):  # something was put there
            for folder in made:
                folder.rmdir()


def _taken(path: Path, what: str, patience: float, say: Callable[[str], object]) -> FileLock | None:
    """The lock, held; None if the disk has none."""
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
        ):  # a holder removed the folder, maybe while mkdir looked at it
            if tries == 1:  # a file or a dangling link is in its place
                raise
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            with suppress(OSError):
                path.unlink()
            say(
                f"{path.parent}: its disk has no file locks, so make sure that no other process works there"
            )
            return None
    with suppress(OSError):  # on a full disk it is held nevertheless
        path.write_text(f"{os.getpid()} on {platform.node()}")
    return lock
