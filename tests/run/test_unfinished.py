"""Commands that use a run that has not ended say so, and what they do while they take long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hexa import cli

from .test_visualize import a_run, tiny


def test_an_unfinished_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", tiny())
    note = f"note: {run} is unfinished: this is its newest checkpoint; {{}} trains it to the end"
    assert cli.main(["export", str(run), "--to", "timm", "--out", str(tmp_path / "out.safetensors")]) == 0
    assert note.format(f"hexa resume {run}") in capsys.readouterr().out.splitlines()
    (run / "adapt.json").write_text("{}")
    assert cli.main(["embed", str(run), "--data", "digits#test", "--out", str(tmp_path / "out.npz")]) == 0
    assert note.format("the same hexa adapt command") in capsys.readouterr().out.splitlines()
    again = ["export", str(tmp_path / "out.safetensors"), "--to", "timm", "--out", str(tmp_path / "b.pth")]
    assert cli.main(again) == 2
    assert "unfinished" not in capsys.readouterr().out
    shutil.copy(tmp_path / "out.safetensors", run / "backbone.safetensors")
    (run / "adapt.json").write_text('{"verdict": "no", "kept": "start", "table": {"header": ["", "", "", ""]}}')
    assert cli.main(["embed", str(run), "--data", "digits#test", "--out", str(tmp_path / "out.npz")]) == 0
    assert f"end of training; its winner is {run}/winner.safetensors" in capsys.readouterr().out


def test_pictures_tell_their_stages_and_count_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = str(a_run(tmp_path / "run", tiny())), str(tmp_path / "out.png")
    assert cli.main(["visualize", run, "--data", "digits", "--out", out]) == 0
    assert capsys.readouterr().err == "opening the images …\nmaking hard examples …\ndrawing …\n"
    assert cli.main(["figure", "hard-examples", run, "--data", "digits", "--out", out]) == 0
    assert capsys.readouterr().err == "opening the images …\nmaking views of them …\n"
    monkeypatch.setattr("hexa.runtime.progress.ProgressBar.PAUSE", 0.0)
    assert cli.main(["figure", "neighbours", run, "--data", "digits", "--out", out]) == 0
    assert "extracting features: 1,347 of 1,347" in capsys.readouterr().err
