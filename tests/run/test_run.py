"""A run folder: what is in it, what is refused before it exists, and what happens on the second sitting."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from hexa import recipes
from hexa.config import UserError
from hexa.methods.moco import MoCo
from hexa.nn.backbones import cosine_filters
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment
from hexa.run.run import pretrain, resume
from hexa.run.visualize import Look
from hexa.runtime import checkpoints
from hexa.training.losses import NonFiniteError
from hexa.weights.pretrained import load_backbone
from tests.conftest import Says
from tests.end_to_end.endings import ALONE
from tests.refusals import one_line

TINY = ALONE | {
    "batch_size": 64,
    "epochs": 1,
    "views.size": 8,
    "network.widths": [4, 8],
    "method.queue_size": 256,
}
TINY["training.log_every"] = 5


def tiny(**changes: Any) -> Experiment:
    fields = {name.replace("__", "."): value for name, value in changes.items()}
    return experiments.override(recipes.get("digits-hexa-moco"), TINY | fields)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def events(folder: Path) -> list[str]:
    return [
        json.loads(line)["event"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def test_run_folder_contents(whole: Path) -> None:
    """A run describes itself."""
    assert experiments.load(whole / "config.yaml") == tiny()
    assert events(whole) == [
        "start",
        "train",
        "train",
        "train",
        "train",
        "train",
        "checkpoint",
        "end",
    ]
    text = (whole.parent / "said.txt").read_text()
    assert [part in text for part in ("digits-hexa-moco", "images/s")] == [True, True]


def test_config_roundtrip_weights(whole: Path, tmp_path: Path, says: Says) -> None:
    """The config of a run, fed back, gives the same weights."""
    again = tmp_path / "again"
    says(f"pretrain --config {whole / 'config.yaml'} --out {again}")
    assert load_backbone(again).content_hash() == load_backbone(whole).content_hash()


def test_cosine_stem_freeze(tmp_path: Path) -> None:
    """A cosine stem is not learned."""
    run = pretrain(tiny(network__stem="cosine"), tmp_path / "run", console=quiet())
    assert torch.equal(
        load_backbone(run).network.get_parameter("conv1.weight"), cosine_filters(4, 3)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"batch_size": 2000, "method__queue_size": 2000},
            "batch_size: 2000 is more than the 1347 images",
        ),
        ({"method__queue_size": 100}, "method.queue_size"),
        ({"data": "digits#valid"}, "no split 'valid'"),
        ({"schedule__warmup_epochs": 1, "schedule__warmup_at_most": 1.0}, "schedule.warmup_epochs"),
        (
            {"network__name": "vit_tiny_patch16_224", "views__size": 224, "views__test_scale": 1.5},
            "size 336",
        ),
    ],
)
def test_refused_run_cleanup(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """A mistake leaves nothing behind."""
    with one_line(words):
        pretrain(tiny(**changes), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_occupied_run_folder(tmp_path: Path) -> None:
    """A folder that is taken is refused with a remedy."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="another --out"):
        pretrain(tiny(), tmp_path, console=quiet())
    (tmp_path / "config.yaml").write_text("recipe: x")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="hexa resume"):
        pretrain(tiny(), tmp_path, console=quiet())
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def test_finished_run_resume(copied: Path, whole: Path) -> None:
    """Resuming a finished run trains nothing and keeps what began it."""
    (copied / "backbone.safetensors").unlink()
    resume(copied, console=(console := quiet()))
    assert "after step 21 of 21" in console.file.getvalue()  # type: ignore[attr-defined]
    assert load_backbone(copied).content_hash() == load_backbone(whole).content_hash()
    assert events(copied) == [*events(whole), "resume", "end"]
    before = json.loads((whole / "environment.json").read_text())
    after = json.loads((copied / "environment.json").read_text())
    assert after["time"] == before["time"]
    assert len(after["resumed"]) == 1


def test_edited_config_and_damaged_checkpoints(
    copied: Path,
) -> None:
    """Neither an edited config nor the loss of all checkpoints is a silent restart."""
    experiments.dump(tiny(method__temperature=0.5), copied / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml"):
        resume(copied, console=quiet())
    experiments.dump(tiny(training__log_every=2), copied / "config.yaml")
    resume(copied, console=quiet())
    for path in checkpoints.checkpoints(copied / "checkpoints"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"no checkpoint of .* is intact"):
        resume(copied, console=quiet())


@pytest.mark.parametrize(
    "optimizer",
    [
        {},
        {"state": {}, "param_groups": []},
        {"state": {}, "param_groups": [1]},
    ],
)
def test_checkpoint_of_another_experiment(copied: Path, optimizer: dict[str, Any]) -> None:
    """One line, whatever the content of an intact file is."""
    path = checkpoints.checkpoints(copied / "checkpoints")[-1]
    state = checkpoints.load(path)
    checkpoints.save(path.parent, state["step"], {**state, "optimizer": optimizer})
    with pytest.raises(UserError, match="belongs to another experiment"):
        resume(copied, console=quiet())


def test_strange_rows(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line if an entry has fewer dimensions."""
    monkeypatch.setattr(MoCo, "restore", lambda method, state: torch.ones(1)[:, 0])
    with pytest.raises(UserError, match="belongs to another experiment"):
        resume(copied, console=quiet())
    monkeypatch.setattr(MoCo, "restore", lambda method, state: state["bank.embeddings"])
    with pytest.raises(UserError, match="do not fit"):
        Look.at(copied, None)


def test_early_divergence_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    """A new run in the same folder, as the error recommends, keeps nothing of the first run."""
    folder = tmp_path / "run"
    forward = MoCo.loss

    def diverges(self: MoCo, *arguments: Any) -> torch.Tensor:
        return forward(self, *arguments) * math.nan

    monkeypatch.setattr(MoCo, "loss", diverges)
    with pytest.raises(NonFiniteError, match=r"step 1: .* hexa visualize$"):
        pretrain(tiny(), folder, console=quiet())
    assert "non-finite" in events(folder)
    monkeypatch.undo()
    pretrain(tiny(), folder, console=quiet())
    assert events(folder) == events(whole)
    assert load_backbone(folder).content_hash() == load_backbone(whole).content_hash()


def bitmaps(root: Path, first: int = 0) -> str:
    """64 images whose names and sizes in bytes do not tell what they show."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(64):
        Image.new("RGB", (8, 8), (3 * number, 100, first)).save(root / f"{number:02d}.bmp")
    return f"folder:{root}"


def test_replaced_images_resume(
    tmp_path: Path,
) -> None:
    """Images replaced under the same names and sizes are not continued with."""
    folder = pretrain(tiny(data=bitmaps(tmp_path / "x")), tmp_path / "run", console=quiet())
    for file in (tmp_path / "x").iterdir():
        file.touch()
    resume(folder, console=quiet())
    bitmaps(tmp_path / "x", 1)
    with pytest.raises(UserError, match="the images have changed since the checkpoint"):
        resume(folder, console=quiet())
