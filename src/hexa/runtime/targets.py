"""Checks of output paths before the work that will write them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hexa.config import UserError, reason


def check(path: Path | str, suffixes: Sequence[str] = (), option: str = "--out") -> Path:
    """Return `path` if a file can be written there; otherwise raise UserError with the reason.

    Creates missing folders and a file with a similar name, like the actual writing, and removes
    them again.
    suffixes: allowed endings of the name.
    """
    out = Path(path)
    if suffixes and out.suffix not in suffixes:
        raise UserError(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    try:
        if out.is_dir():
            raise UserError(f"{option} {path}: is a folder; give the path of a file")
        if out.exists() and not out.is_file():
            raise UserError(f"{option} {path}: is not a regular file")
        _try(out.absolute())
    except OSError as error:
        raise UserError(
            f"{option} {path}: cannot be written ({error.strerror or error}); give another path"
        ) from None
    except UserError:
        raise
    except (ValueError, RecursionError) as error:  # a zero byte, or a thousand nested folders
        raise UserError(
            f"{option} {str(path)[:160]}: cannot be the name of a file ({reason(error)})"
        ) from None
    return out


def check_folder(path: Path | str) -> Path:
    """`check` for a folder that will receive files."""
    out = Path(path)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {path}: is a file; give a folder")
    check(out / "file")
    return out


def _try(out: Path) -> None:
    """Try the writing in a temporary folder, so that other processes may try at the same time."""
    there = next(folder for folder in out.parents if folder.exists() or folder.is_symlink())
    with tempfile.TemporaryDirectory(prefix=".hexa-", dir=there) as place:
        folder = Path(place) / out.parent.relative_to(there)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".{out.name}.{'0' * 8}.tmp").write_bytes(
            bytes(1024)
        )  # as hexa.runtime.files.write_whole
