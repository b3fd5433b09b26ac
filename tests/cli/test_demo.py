"""The demo's folder: for one demo at a time. What it prints is tested with the command line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hexa.cli import demo as demos
from hexa.config import UserError
from hexa.recipes.experiment import dump
from hexa.run.folder import LOCK
from hexa.runtime.lock import locked


def test_demo_folder_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two demos do not share a folder."""
    monkeypatch.setattr(demos, "PATIENCE", 0.0)
    with locked(tmp_path / LOCK, "is here"), pytest.raises(UserError, match=r"running the demo in"):
        demos.demo(tmp_path, console=Console(file=io.StringIO()))


def test_demo_other_run_folder(tmp_path: Path) -> None:
    """A run of another experiment is neither replaced nor resumed."""
    folder = tmp_path / "digits-moco-v2"
    folder.mkdir()
    dump(demos._experiment("digits-moco-v2", 2), folder / "config.yaml")
    with pytest.raises(UserError, match="another run"):
        demos.demo(tmp_path, epochs=1, console=Console(file=io.StringIO()))
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
