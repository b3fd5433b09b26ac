"""One real flow through the command line, and the mistakes that must leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexa import recipes
from hexa.cli import demo
from hexa.recipes.experiment import override
from tests.conftest import Says
from tests.evaluation.given import noise_images


@pytest.mark.usefixtures("few_digits")
def test_demo_table(tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo prints its table and puts it into a report."""
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
