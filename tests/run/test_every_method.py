"""Complete runs of every method with adversarial views: resuming, pictures, the backbone, the
benchmark."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hexa import load_backbone, recipes
from hexa.config import ConfigError, choices
from hexa.core import MethodConfig
from hexa.recipes.experiment import Experiment, override
from hexa.run.run import pretrain, resume
from hexa.training.journal import METRICS
from tests.end_to_end.endings import ALONE
from tests.laws.cases import CROPS, NETWORK, SMALL, nested

METHODS = choices(MethodConfig, "name", "hexa.methods")
UNMIXABLE = [name for name, config in METHODS.items() if config.model_construct().unmixable]
CLUSTERING = {"deepcluster-v2", "pcl-v2"}
QUIET = Console(file=io.StringIO())


def experiment(name: str, hard: tuple[str, ...] = ("adversarial",), **changes: Any) -> Experiment:
    """Two epochs of five steps of 64 digits."""
    method = nested(SMALL.get(name, {}))
    for place in (method, method.get("contrast", {})):
        if "queue_size" in place:
            place["queue_size"] = 128
    if name == "cpc":
        method["stride"] = 5  # 3 × 3 patches instead of 6 × 6, a sixteenth of the products
    fields = ALONE | {
        "method": {"name": name, **method},
        **{f"network.{field}": value for field, value in NETWORK.get(name, {}).items()},
        "network.widths": [4, 8],
        "images": 321,
        "batch_size": 64,
        "epochs": 2,
        "views.extra_crops": [{"count": 2, "size": 8, "scale": [0.1, 0.3]}]
        if 8 in CROPS.get(name, ())
        else [],
        "views.num_views": 3 if name == "infomin" else min(2, len(CROPS.get(name, (0, 0)))),
        "hard_examples": {kind: {"kind": kind} for kind in hard},
        "training.log_every": 2,
        "training.checkpoint_every_steps": 3,
        "training.keep": 9,
    }
    return override(recipes.get("digits-hexa-moco"), fields | changes)


def stopped(whole: Path, folder: Path, step: int) -> Path:
    """A copy of a run that ended as if it had been killed after its checkpoint of this step."""
    shutil.copytree(whole, folder)
    for path in (folder / "checkpoints").iterdir():
        if path.name > f"step-{step:08d}.pt":
            path.unlink()
    (folder / "backbone.safetensors").unlink()
    return folder


@pytest.fixture(scope="module", params=METHODS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("every") / request.param
    pretrain(experiment(request.param), folder, console=QUIET)
    return request.param, folder


def test_run_metrics_and_perturbation(run: tuple[str, Path]) -> None:
    """Metrics are complete, and attacks move pixels by 1/255."""
    name, folder = run
    lines = [
        line for line in map(json.loads, (folder / METRICS).open()) if line["event"] == "train"
    ]
    assert lines
    assert all(("effective_rank" in line) == (name not in ("rotation", "jigsaw")) for line in lines)
    for line in lines:
        assert all(math.isfinite(line[key]) for key in ("loss/std", "loss/adversarial", "loss"))
        assert 0 <= line["accuracy/std"] <= 1
        assert 0.5 < line["perturbation/adversarial"] <= 1.001


def test_method_resume_bits(run: tuple[str, Path], tmp_path: Path) -> None:
    """In the first epoch, and in the second where it begins with clusters."""
    name, folder = run
    whole = load_backbone(folder).content_hash()
    assert load_backbone(folder / "checkpoints" / "step-00000010.pt").content_hash() == whole
    for step in (3, 9) if name in CLUSTERING else (3,):
        other = stopped(folder, tmp_path / str(step), step)
        resume(other, console=QUIET)
        assert load_backbone(other).content_hash() == whole


@pytest.mark.parametrize("name", UNMIXABLE)
def test_unmixable_methods(name: str, tmp_path: Path) -> None:
    """Mixing puzzles is refused before anything is written."""
    for hard in ("cutmix", "mixup"):
        with pytest.raises(ConfigError) as caught:
            pretrain(experiment(name, (hard,)), tmp_path / "run", console=QUIET)
        (path, message), *others = caught.value.problems
        assert path == f"hard_examples.{hard}"
        assert message.startswith(f"not for {name}: its views are puzzles")
        assert not others
        assert not (tmp_path / "run").exists()
