"""Files against a machine that stops in between."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hexa.evaluation import results
from hexa.reproduce import storage
from hexa.runtime.files import write_whole


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "folder" / "file", lambda file: file.write(b"before"))
    with pytest.raises(ZeroDivisionError):
        write_whole(path, lambda file: file.write(b"x" * (1 // 0)))
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["study", "result"])
def test_content_is_on_the_disk_before_its_name_and_the_name_thereafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    flush, rename, calls = os.fsync, os.replace, list[str]()

    def flushed(handle: int) -> None:
        calls.append("flush folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "flush")
        flush(handle)

    def renamed(before: Path, after: Path) -> None:
        calls.append("rename")
        rename(before, after)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    if kind == "study":
        storage.write(tmp_path / "one.json", {"a": "ü"})
        assert storage.read(tmp_path / "one.json") == {"a": "ü"}
    else:
        results.write({"a": "ü"}, tmp_path / "one.json")
    assert calls == ["flush", "rename", "flush folder"]
