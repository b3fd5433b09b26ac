"""Commands that use a run that has not ended say so, and what they do while they take long."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexa import cli

from .test_visualize import a_run, tiny


@pytest.mark.parametrize(("record", "go_on"), [(None, "hexa resume {run}"), ("{}", "the same hexa adapt command")])
def test_an_unfinished_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str | None, go_on: str
) -> None:
    run = a_run(tmp_path / "run", tiny())
    if record is not None:
        (run / "adapt.json").write_text(record)
    note = f"note: {run} is unfinished: this is its newest checkpoint; {go_on.format(run=run)} trains it to the end"
    assert cli.main(["export", str(run), "--to", "timm", "--out", str(tmp_path / "out.safetensors")]) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert cli.main(["embed", str(run), "--data", "digits", "--out", str(tmp_path / "out.npz")]) == 0
    told = capsys.readouterr()
    assert note in told.out.splitlines()
    assert (
        cli.main(["export", str(tmp_path / "out.safetensors"), "--to", "timm", "--out", str(tmp_path / "b.pth")]) == 2
    )
    assert "unfinished" not in capsys.readouterr().out


def test_pictures_tell_their_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(a_run(tmp_path / "run", tiny())), str(tmp_path / "out.png")
    assert cli.main(["visualize", run, "--data", "digits", "--out", out]) == 0
    assert capsys.readouterr().err == "opening the images …\nmaking hard examples …\ndrawing …\n"
    assert cli.main(["figure", "hard-examples", run, "--data", "digits", "--out", out]) == 0
    assert capsys.readouterr().err == "opening the images …\nmaking views of them …\n"


def test_of_features_the_images_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexa.runtime.progress.ProgressBar.PAUSE", 0.0)
    run, out = str(a_run(tmp_path / "run", tiny())), str(tmp_path / "out.png")
    assert cli.main(["figure", "neighbours", run, "--data", "digits", "--out", out]) == 0
    assert "extracting features: 1,347 of 1,347" in capsys.readouterr().err
