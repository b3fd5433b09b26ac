"""The demo's folder: for one demo at a time. What it prints is tested with the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hexa.cli import demo as demos
from hexa.config import UserError
from hexa.recipes.experiment import dump
from hexa.run.folder import LOCK, mine
from hexa.runtime.lock import locked


def test_demo_folder_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two demos do not share a folder."""
    monkeypatch.setattr(demos, "PATIENCE", 0.0)
    with locked(tmp_path / LOCK, "is here"), pytest.raises(UserError, match=r"running the demo in"):
        demos.demo(tmp_path, console=Console(file=io.StringIO()))


def test_demo_trained_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in training is not replaced."""
    monkeypatch.setattr("hexa.run.folder.PATIENCE", 0.0)
    experiment = demos._experiment("digits-moco-v2", 1)
    folder = tmp_path / "digits-moco-v2"
    with mine(folder):
        (folder / "config.yaml").write_text("recipe: digits-moco-v2\n")
        with pytest.raises(UserError, match="already"):
            demos._clear(folder, experiment)
        assert (folder / "config.yaml").exists()
    demos._clear(folder, experiment)
    assert not folder.exists()
    folder.mkdir()
    dump(experiment, folder / "config.yaml")
    demos._clear(folder, experiment)  # the same run is gone on with
    assert folder.exists()


def test_killed_demo_folder(tmp_path: Path) -> None:
    """A demo that was killed at once leaves a folder that the next one may use."""
    (tmp_path / "environment.json").write_text(json.dumps({"launcher": "here 1"}))
    demos._clear(tmp_path, demos._experiment("digits-moco-v2", 1))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        demos._clear(tmp_path, demos._experiment("digits-moco-v2", 1))
