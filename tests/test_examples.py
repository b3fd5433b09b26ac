"""Each file of examples/ runs from start to end, and what it trains is better than random weights."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hexa

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Points of k-NN accuracy that training gains at least; the shortened examples gain more.
GAIN = 5.0
#: Terms of the loss, which each example has by these names.
TERMS = {
    "hexa_moco": {"std", "adversarial", "cutmix"},
    "own_method": {"std", "adversarial", "cutmix"},
    "own_hard_example": {"std", "worst-turn"},
    "lightning_module": {"std", "adversarial"},
}


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder` on one thread, with the same package as this test."""
    source = Path(hexa.__file__).parents[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def logged_losses(folder: Path, output: str) -> dict[str, float]:
    """Return the terms of the last step that was logged: by the run if there is one, otherwise printed."""
    logs = list(folder.glob("runs/*/metrics.jsonl"))
    if not logs:
        last = re.findall(r"^epoch \d+: (.*)$", output, re.MULTILINE)[-1]
        pairs = [term.rsplit(" ", 1) for term in last.split(", ")]
        return {name: float(loss) for name, loss in pairs}
    events = [json.loads(line) for line in logs[0].read_text().splitlines()]
    step = [event for event in events if event["event"] == "train"][-1]
    prefix = "loss/"
    return {
        name.removeprefix(prefix): loss for name, loss in step.items() if name.startswith(prefix)
    }


def check(name: str, folder: Path, epochs: int) -> None:
    """Run an example for some epochs; its losses are finite, and its features improve."""
    done = python(folder, str(EXAMPLES / f"{name}.py"), "--epochs", str(epochs))
    assert done.returncode == 0, done.stderr
    losses = logged_losses(folder, done.stdout)
    assert losses.keys() == TERMS[name]
    assert all(math.isfinite(loss) for loss in losses.values()), losses
    before, after = map(float, re.findall(r"k-NN of \w+ features: ([\d.]+) %", done.stdout))
    assert after > before + GAIN


def test_hexa_moco(tmp_path: Path) -> None:
    check("hexa_moco", tmp_path, epochs=5)


def test_own_method(tmp_path: Path) -> None:
    check("own_method", tmp_path, epochs=4)


def test_own_hard_example_is_trained_and_pictured(tmp_path: Path) -> None:
    check("own_hard_example", tmp_path, epochs=2)
    picture = tmp_path / "runs/worst-turn/worst-turn.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not find_spec("pytorch_lightning"), reason="pytorch-lightning is missing")
def test_lightning(tmp_path: Path) -> None:
    check("lightning_module", tmp_path, epochs=4)


def test_without_lightning_one_line_says_what_is_missing(tmp_path: Path) -> None:
    hidden = "import sys, runpy; sys.modules['pytorch_lightning'] = None"
    script = f"{hidden}; runpy.run_path({str(EXAMPLES / 'lightning_module.py')!r})"
    done = python(tmp_path, "-c", script)
    assert done.returncode == 1
    assert "pytorch-lightning" in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_example_is_tested_and_described() -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    assert files == TERMS.keys()
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| \[(\w+)\.py\]", table, re.MULTILINE)
    assert sorted(described) == sorted(files)
