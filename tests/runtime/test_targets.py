"""Output paths are tested before the work, and the test leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.runtime import files


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("folder.json").mkdir()
    os.mkfifo("pipe.json")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["a.json", "new/deep/a.json", "\udcff.json", "[b].json", "file.json", "é\n.json"]
)
def test_writable_targets(here: Path, name: str) -> None:
    """Writable paths are accepted, and nothing is left behind."""
    before = sorted(here.rglob("*"))
    assert files.check_target(name, (".json",)) == Path(name)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.txt", "must end in .json"),
        ("folder.json", "is a folder"),
        ("pipe.json", "not a regular file"),
        ("a/" * 3000 + "a.json", "cannot be"),
        ("a\0.json", "cannot be the name"),
    ],
)
def test_unwritable_targets(here: Path, name: str, said: str) -> None:
    """Paths that cannot be written are refused."""
    before = sorted(here.rglob("*"))
    with pytest.raises(UserError, match=said):
        files.check_target(name, (".json",))
    assert sorted(here.rglob("*")) == before
