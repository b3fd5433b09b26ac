"""Atomic files, which are either complete or absent even if the machine stops; checks of output
paths before the work; the user's cache folder."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hexa.config import UserError, reason

#: Errors of a full disk, with a remedy.
_FULL = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EFBIG: "the limit on the size of files is reached; raise it (ulimit -f)",
}


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *, make_folders: bool = True
) -> Path:
    """Write a file atomically: `write` fills a temporary file, which is flushed to the disk and
    renamed.

    make_folders: create missing folders; False if the folder may be deleted during the work and
    must not reappear.
    Raises OSError, whose filename is `path`, if writing fails; an existing file is then unchanged.
    """
    before = sys.exception()
    if make_folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # never through a link that has this name
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
    """`write_whole` for text in UTF-8."""
    return write_whole(path, lambda file: file.write(text.encode()))


def check_target(path: Path | str, suffixes: Sequence[str] = (), option: str = "--out") -> Path:
    """Return `path` if a file can be written there; otherwise raise UserError with the reason.

    Creates missing folders and a file with a similar name, like the actual writing, and removes
    them again.
    suffixes: allowed endings of the name.
    """
    out = Path(path)
    if suffixes and out.suffix not in suffixes:
        raise UserError(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    with _as_option(f"{option} {path}"):
        if out.is_dir():
            raise UserError(f"{option} {path}: is a folder; give the path of a file")
        if out.exists() and not out.is_file():
            raise UserError(f"{option} {path}: is not a regular file")
        _try(out.absolute())
    return out


def check_target_folder(path: Path | str) -> Path:
    """`check_target` for a folder that will receive files."""
    out = Path(path)
    with _as_option(f"--out {path}"):
        if out.exists() and not out.is_dir():
            raise UserError(f"--out {path}: is a file; give a folder")
        _try(out.absolute() / "file")
    return out


@contextmanager
def _as_option(given: str) -> Iterator[None]:
    """Raise UserError, with the option `given` and its value, for a path that cannot be written."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{given}: cannot be written ({why}); give another path") from None
    except UserError:
        raise
    except (ValueError, RecursionError) as error:  # a zero byte, or a thousand nested folders
        why = f"cannot be the name of a file ({reason(error)})"
        raise UserError(f"{given[:160]}: {why}") from None


def _try(out: Path) -> None:
    """Try the writing in a temporary folder, so that other processes may try at the same time."""
    there = next(folder for folder in out.parents if folder.exists() or folder.is_symlink())
    with tempfile.TemporaryDirectory(prefix=".hexa-", dir=there) as place:
        folder = Path(place) / out.parent.relative_to(there)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".{out.name}.{'0' * 8}.tmp").write_bytes(bytes(1024))  # as `write_whole`


def sweep(folder: Path, *names: str) -> None:
    """Delete temporary files that killed processes left in a folder: all of them, or only those for
    these names.

    Only the process that writes these files may call this.
    """
    left = re.compile(rf"\.({'|'.join(map(re.escape, names)) or '.*'})\.\d+\.tmp", re.DOTALL)
    for path in folder.iterdir() if folder.is_dir() else ():
        if left.fullmatch(path.name):
            path.unlink(missing_ok=True)


@contextmanager
def by_plain_name(path: Path) -> Iterator[str]:
    """Yield a name for opening the file in libraries that accept only UTF-8; on Linux every open
    file also has such a name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        yield str(path)


def cache_folder() -> Path:
    """Return the folder for downloads and measurements: HEXA_CACHE, or `hexa` in the user's cache
    folder."""
    chosen = os.environ.get("HEXA_CACHE")
    return (
        Path(chosen)
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hexa"
    )


def describe(error: OSError) -> str:
    """Return the file and the system's error in one line, with a remedy if the disk is full."""
    what = _FULL.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename is not None else what


def _of_the_system(error: BaseException | None, before: BaseException | None) -> OSError | None:
    """Return the system error behind an error, not looking further than `before`; torch and others
    raise their own on top."""
    while error is not before and error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, which makes a rename permanent; systems that cannot open folders
    do not need this."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
