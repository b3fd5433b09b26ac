"""`--images N` of the commands: the same part of a source for each command, as shown by their
output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

import hexa
from hexa.runtime import checkpoints
from hexa.weights.pretrained import load_backbone
from tests.conftest import Says
from tests.end_to_end.endings import RECIPE, options

PART = {"images": 200, "of": 1347, "seed": 3}
ASKED = "--images 200 --seed 3"


def test_part_run_resume(tmp_path: Path, says: Says) -> None:
    """A run of a part says so and resumes."""
    run = tmp_path / "run"
    says(f"pretrain {RECIPE} --out {run} {ASKED}", *options(batch_size=64))
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["images"] == 200
    assert config["seed"] == 3
    environment = json.loads((run / "environment.json").read_text())
    assert environment["data"]["drawn"] == PART
    steps = checkpoints.newest_good(run / "checkpoints", print)
    assert steps is not None
    assert steps[1]["steps_per_epoch"] == 200 // 64
    whole = load_backbone(run).content_hash()

    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    checkpoints.checkpoints(cut / "checkpoints")[-1].unlink()
    (cut / "backbone.safetensors").unlink()
    says(f"resume {cut}")
    assert load_backbone(cut).content_hash() == whole


def test_part_evaluation(tmp_path: Path, says: Says) -> None:
    """An evaluation learns from a part and scores all images."""
    out = tmp_path / "result.json"
    said = says(f"evaluate knn pixels:8 --data digits --out {out} {ASKED}").out
    result = json.loads(out.read_text())
    assert result["protocol"].endswith("-200-images")
    assert result["data_facts"]["fit"]["images"] == 200
    assert result["data_facts"]["fit"]["drawn"] == PART
    assert result["data_facts"]["test"]["images"] == 450
    assert "drawn" not in result["data_facts"]["test"]
    assert "200 of the 1,347 images" in said
    all_of_them = hexa.evaluate("knn", "pixels:8", "digits", images=5000)
    assert "images" not in all_of_them["protocol"]
    assert any("has only 1,347 images: all are used" in note for note in all_of_them["notes"])
