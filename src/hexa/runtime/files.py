"""Atomic files, which are complete or absent whenever the machine stops; the user's cache folder."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: Errors of a disk that is full, and what to do.
_FULL = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EFBIG: "the limit on the size of files is reached; raise it (ulimit -f)",
}


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *, make_folders: bool = True
) -> Path:
    """Write a file atomically: `write` fills a temporary file, which is flushed to the disk and renamed.

    make_folders: create missing folders; not wanted where a folder may be removed during the work.
    Raises OSError, whose filename is `path`, if that fails; an existing file is then unchanged.
    """
    before = sys.exception()
    if make_folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        if (cause := _of_the_system(error, before)) is None:
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    _flush_folder(path.parent)
    return path


def write_text(path: Path, text: str) -> Path:
    """`write_whole` of text, as UTF-8."""
    return write_whole(path, lambda file: file.write(text.encode()))


def sweep(folder: Path, *names: str) -> None:
    """Remove temporary files that killed processes left in a folder: of all files, or of those with these names.

    Only for the process that writes these files.
    """
    left = re.compile(rf"\.({'|'.join(map(re.escape, names)) or '.*'})\.\d+\.tmp", re.DOTALL)
    for path in folder.iterdir() if folder.is_dir() else ():
        if left.fullmatch(path.name):
            path.unlink(missing_ok=True)


@contextmanager
def by_plain_name(path: Path) -> Iterator[str]:
    """A name to open the file by, for libraries that accept only UTF-8; on Linux any open file also has such a name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        yield str(path)


def cache_folder() -> Path:
    """Where downloads and measurements are kept: HEXA_CACHE, or `hexa` in the user's cache folder."""
    chosen = os.environ.get("HEXA_CACHE")
    return (
        Path(chosen)
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hexa"
    )


def describe(error: OSError) -> str:
    """The file and the system's error in one line, with what to do if the disk is full."""
    what = _FULL.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename is not None else what


def _of_the_system(error: BaseException | None, before: BaseException | None) -> OSError | None:
    """The system error that caused an error, since `before`: torch and others raise their own after it."""
    while error is not before and error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def _flush_folder(folder: Path) -> None:
    """Make a rename permanent by flushing its folder; systems that cannot open folders do not need this."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
