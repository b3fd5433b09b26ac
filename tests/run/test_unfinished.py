"""Commands that use a run that has not ended say so, and what they do while they take long."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Says

from .test_visualize import a_run, tiny


def test_unfinished_run_note(tmp_path: Path, says: Says) -> None:
    """An unfinished run is named."""
    run = a_run(tmp_path / "run", tiny())
    note = f"note: {run} is unfinished.*; {{}} "
    said = says(f"export {run} --to safetensors --out {tmp_path / 'out.safetensors'}").out
    assert re.search(note.format(f"hexa resume {run}"), said)
    embedding = f"embed {run} --data digits#test --out {tmp_path / 'out.npz'}"
    (run / "adapt.json").write_text("{}")
    assert re.search(note.format("the same hexa adapt command"), says(embedding).out)
    again = f"export {tmp_path}/out.safetensors --to safetensors --out {tmp_path}/b.safetensors"
    assert "is unfinished" not in says(again).out
    for name in ("backbone", "winner"):
        shutil.copy(tmp_path / "out.safetensors", run / f"{name}.safetensors")
    assert f"{run}/winner.safetensors" in says(embedding).out


def test_picture_stages_and_counts(
    tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures tell their stages and count images."""
    given = f"{a_run(tmp_path / 'run', tiny())} --data digits --out {tmp_path / 'out.png'}"
    said = says(f"visualize {given}").err
    assert said == "opening the images …\nmaking hard examples …\ndrawing …\n"
    said = says(f"figure view-space {given}").err
    assert said == "opening the images …\nmaking views of them …\n"
    monkeypatch.setattr("hexa.runtime.console.ProgressBar.PAUSE", 0.0)
    assert "extracting features: 1,347 of 1,347" in says(f"figure clusters {given}").err
