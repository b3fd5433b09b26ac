"""The folder of a run: locked by one process, reused if nothing would be lost, and robust against
disk errors."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.evaluation import results
from hexa.run import folder as folders
from hexa.run.folder import LOCK, mine
from hexa.run.run import pretrain, resume
from hexa.runtime import files
from hexa.weights.pretrained import load_backbone
from tests.refusals import one_line

from .test_run import quiet, tiny

RUN = {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "backbone.safetensors"}


def test_run_folder_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is trained by one process at a time."""
    monkeypatch.setattr(folders, "PATIENCE", 0.0)
    monkeypatch.setattr("hexa.run.run.open_images", None)  # it is found out before any data is read
    folder = tmp_path / "run"
    stopped = tmp_path / "stopped"
    with mine(folder):
        with pytest.raises(
            UserError, match=rf"^process {os.getpid()} on .* is already training in {folder}; wait"
        ):
            pretrain(tiny(), folder, console=quiet())
        results.append({"metrics": {}}, folder / "results.json")  # evaluations may go on
        (folder / "config.yaml").write_text("recipe: x")
        with pytest.raises(UserError, match="already"):
            resume(folder, console=quiet())
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "results.json"}
    with pytest.raises(UserError, match="no run to resume"):
        resume(stopped, console=quiet())
    assert not stopped.exists()


def test_killed_run_without_configuration(
    tmp_path: Path,
) -> None:
    """A run that was killed before it had a configuration is begun again."""
    environment = tmp_path / "environment.json"
    environment.write_text(json.dumps({"launcher": "here 1"}))
    (tmp_path / ".config.yaml.123.tmp").write_text("recipe: di")
    (tmp_path / LOCK).write_text("123 on a machine that is no more")
    pretrain(tiny(), tmp_path, console=quiet())
    assert {path.name for path in tmp_path.iterdir()} == RUN
    assert "resumed" not in json.loads(environment.read_text())


def test_half_written_files(copied: Path) -> None:
    """Half-written files of killed processes are removed."""
    folder = copied
    (folder / "checkpoints" / ".step-00000021.pt.123.tmp").write_bytes(b"half a file")
    (folder / ".backbone.safetensors.123.tmp").write_bytes(b"half a file")
    (folder / ".results.json.123.tmp").write_bytes(b"[")  # an evaluation may be at work on it
    resume(folder, console=quiet())
    assert {path.name for path in folder.iterdir()} == {*RUN, ".results.json.123.tmp"}
    assert len(list((folder / "checkpoints").iterdir())) == 1
    results.append({"metrics": {}}, folder / "results.json")
    assert {path.name for path in folder.iterdir()} == {*RUN, "results.json"}


@pytest.mark.parametrize(
    "name", ["environment.json", "config.yaml", "step-00000020.pt", "backbone.safetensors"]
)
def test_full_disk_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, name: str
) -> None:
    """A full disk is one line, and the run continues where it was."""
    folder = tmp_path / "run"
    rename = os.replace

    def full(before: Path, after: Path) -> None:
        if after.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(before, after)

    monkeypatch.setattr(files.os, "replace", full)
    often = {"training__checkpoint_every_steps": 10}
    with pytest.raises(UserError, match="the disk is full; make room; the run stops; ") as caught:
        pretrain(tiny(**often), folder, console=quiet())
    said = str(caught.value)
    assert f"/{name}: " in said
    assert "\n" not in said
    begun = name not in ("environment.json", "config.yaml")
    assert (
        f": hexa resume {folder}" if begun else f"{folder} has nothing to continue from"
    ) in said
    assert ("step-00000010.pt" in said) == (name == "step-00000020.pt")
    monkeypatch.undo()
    if begun:
        resume(folder, console=quiet())
    else:
        pretrain(tiny(**often), folder, console=quiet())
    assert load_backbone(folder).content_hash() == load_backbone(whole).content_hash()
    assert {path.name for path in folder.iterdir()} == RUN


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "tracker.json",
        "config.yaml",
        "environment.json",
        "tensorboard",
        "wandb",
        "checkpoints",
    ],
)
@pytest.mark.parametrize("dangling", [False, True])
def test_links_out_of_a_resumed_run(copied: Path, name: str, dangling: bool) -> None:
    """Nothing is written or removed through a link in the folder of a run."""
    outside = copied.parent / "outside" / name
    outside.parent.mkdir()
    if not dangling or name == "config.yaml":
        (copied / name).rename(outside) if (copied / name).exists() else outside.mkdir()
    elif (copied / name).is_dir():
        shutil.rmtree(copied / name)
    else:
        (copied / name).unlink(missing_ok=True)
    (copied / name).symlink_to(outside)
    before = everything(copied.parent)
    with one_line(f"{name}: is a link; replace it"):
        resume(copied, console=quiet())
    assert everything(copied.parent) == before


def everything(folder: Path) -> dict[Path, bytes | None]:
    """The contents of all files below a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
