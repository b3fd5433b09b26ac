"""Files on a machine that stops in the middle of a write."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO
from unittest.mock import MagicMock, call

import pytest

from hexa.runtime.files import describe, sweep, write_whole


def test_failed_write(tmp_path: Path) -> None:
    """A failed write leaves the file as it was."""
    path = write_whole(tmp_path / "folder" / "file", lambda file: file.write(b"before"))
    with pytest.raises(ZeroDivisionError):
        write_whole(path, lambda file: file.write(b"x" * (1 // 0)))
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


def test_write_error_filename(tmp_path: Path) -> None:
    """A file that cannot be written is named."""

    def full(file: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def foreign(file: BinaryIO) -> None:
        """Raise an own error after the system's error, as torch does."""
        try:
            full(file)
        finally:
            raise RuntimeError("unexpected pos 768 vs 662")

    for write in (full, foreign):
        with pytest.raises(OSError, match="No space") as caught:
            write_whole(tmp_path / "file", write)
        assert caught.value.filename == str(tmp_path / "file")
        assert describe(caught.value) == f"{tmp_path / 'file'}: the disk is full; make room"
    try:
        raise OSError(errno.ENOSPC, "not of the writing")
    except OSError:
        with pytest.raises(ZeroDivisionError):
            write_whole(tmp_path / "file", lambda file: file.write(b"x" * (1 // 0)))
    assert list(tmp_path.iterdir()) == []


def test_link_at_the_temporary_name(tmp_path: Path) -> None:
    """A link that waits under the name of the temporary file is not followed."""
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(tmp_path / "outside")
    write_whole(tmp_path / "file", lambda file: file.write(b"content"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not (tmp_path / "file").is_symlink()


def test_temporary_file_sweep(tmp_path: Path) -> None:
    """Temporary files of killed processes are deleted."""
    left = [".one.json.123.tmp", ".two[1].pt.4.tmp", ".two[1].pt.55.tmp"]
    kept = [
        "one.json",
        ".one.json.tmp",
        ".one.json.12a.tmp",
        "one.json.123.tmp",
        ".one.json.123.tmp.bak",
    ]
    for name in left + kept:
        (tmp_path / name).touch()
    sweep(tmp_path, "two[1].pt", "absent")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, left[0]}
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    sweep(tmp_path / "absent")


def test_write_flush_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is flushed before the rename, and the folder after it."""
    seen = MagicMock()
    seen.rename.side_effect = os.replace
    monkeypatch.setattr(os, "replace", seen.rename)
    monkeypatch.setattr(os, "fsync", lambda handle: seen.flush(stat.S_ISDIR(os.fstat(handle)[0])))
    write_whole(tmp_path / "one", lambda file: file.write(b"content"))
    assert [name for name, _, _ in seen.mock_calls] == ["flush", "rename", "flush"]
    assert seen.flush.call_args_list == [call(False), call(True)]  # the folder last
