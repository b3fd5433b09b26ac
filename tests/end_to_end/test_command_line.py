"""One real flow through the command line, and the mistakes that must leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import hexa
from hexa import cli, recipes
from hexa.cli import demo
from hexa.recipes.experiment import override
from tests.conftest import Says
from tests.evaluation.given import noise_images

TINY = "digits-hexa-moco --batch-size 128 --method.queue_size 128 --network.widths [8,16]"
TINY += " --device cpu --precision fp32 --monitor.knn_every 1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an epoch that every test below only reads or adds to."""
    run = tmp_path_factory.mktemp("flow") / "run"
    line = f"pretrain {TINY} --epochs 1 --out {run} --hard_examples.cutmix.weight 1"
    assert cli.main(line.split()) == 0
    return run


def test_config_roundtrip_weights(finished: Path, tmp_path: Path, says: Says) -> None:
    """The config of a run, fed back, gives the same weights."""
    again = tmp_path / "again"
    quick = "--training.report false --training.tensorboard false"
    says(f"pretrain --config {finished / 'config.yaml'} --out {again} {quick}")
    assert hexa.load_backbone(again).content_hash() == hexa.load_backbone(finished).content_hash()


def test_evaluate_result_file(finished: Path, tmp_path: Path, says: Says) -> None:
    """The result is kept with its protocol."""
    out = tmp_path / "knn.json"
    says(f"evaluate knn {finished} --data digits --k 20 --out {out}")
    result = json.loads(out.read_text())
    assert result["protocol"].startswith("knn")
    fields = {"protocol", "preset", "metrics", "backbone", "data", "seed", "versions", "seconds"}
    assert fields <= set(result)
    assert 50 < result["metrics"]["top1"] <= 100
    assert result["metrics"] in [
        entry["metrics"] for entry in json.loads((finished / "results.json").read_text())
    ]


def test_embed_arrays(finished: Path, tmp_path: Path, says: Says) -> None:
    """Features, labels and paths are written."""
    out = tmp_path / "features.npz"
    says(f"embed {finished} --data digits#test --out {out}")
    with np.load(out) as arrays:
        features = arrays["features"]
        labels = arrays["labels"]
        paths = arrays["paths"]
    assert features.shape == (450, 16)
    assert features.dtype == np.float32
    assert labels.shape == (450,)
    assert len(set(paths)) == 450
    assert np.ptp(features, axis=0).max() > 0


def test_visualize_and_report_files(finished: Path, tmp_path: Path, says: Says) -> None:
    """Each command writes one file."""
    picture = tmp_path / "picture.png"
    page = tmp_path / "page.html"
    says(f"visualize {finished} --data digits --out {picture} --num-images 3")
    assert Image.open(picture).size[0] > 4 * 16
    says(f"report {finished} --out {page}")
    text = page.read_text()
    assert "digits-hexa-moco" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "picture.png"]


def test_demo_table(tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo prints its table and replaces nothing."""
    every = load_digits(return_X_y=True)
    monkeypatch.setattr(
        "sklearn.datasets.load_digits", lambda **_: tuple(values[::3] for values in every)
    )
    monkeypatch.setitem(
        demo.PROTOCOLS, "robust", {"epsilons": (8, 16), "steps": 1, "targets": 1, "images": 20}
    )
    small = {
        "network.widths": [4, 8],
        "training.report": False,
        "training.tensorboard": False,
        "epochs": 1,
    }
    monkeypatch.setattr(
        demo, "_experiment", lambda recipe, epochs: override(recipes.get(recipe), small)
    )
    out = tmp_path / "demo"
    printed = says(f"demo --epochs 1 --out {out}").out
    assert all(
        name in printed for name in ("raw pixels", "random init", "MoCo-v2", "HEXA-MoCo", "ε=16")
    )
    assert "robust@16" in (out / "report.html").read_text()
    stranger = tmp_path / "stranger"
    (stranger / "digits-moco-v2").mkdir(parents=True)
    (stranger / "digits-moco-v2" / "thesis.txt").write_text("mine")
    says(f"demo --out {stranger}", status=2)
    assert list(stranger.rglob("*")) == [
        stranger / "digits-moco-v2",
        stranger / "digits-moco-v2" / "thesis.txt",
    ]


def test_current_folder_imports(tmp_path: Path) -> None:
    """Named like modules, they would be in all processes, those of the SVMs too."""
    for name in ("random", "torch", "numpy", "joblib", "token", "inspect", "queue"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    noise_images(
        tmp_path / "images", {f"{'ab'[number % 2]}/{number}.png": (8, 8) for number in range(40)}
    )
    command = (
        "-m hexa evaluate svm pixels:4 --data folder:images --holdout 0.5 --costs 0.5 --device cpu"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "mAP" in done.stdout
    assert not (tmp_path / "imported").exists()
