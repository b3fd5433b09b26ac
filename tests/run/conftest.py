"""A run that nothing happened to, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hexa.run.run import pretrain

from .test_run import quiet, tiny


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run of `tiny`, with its output in `said.txt` next to it. Do not change it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    pretrain(tiny(), folder, console=(console := quiet()))
    (folder.parent / "said.txt").write_text(console.file.getvalue())  # type: ignore[attr-defined]
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of `whole` to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "copied"))
