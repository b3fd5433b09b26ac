"""Pictures from recipes and from trained runs, of real images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hexa import recipes
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.pictures import MID_GREY
from hexa.run.build import Machine, build_method, setting_of
from hexa.run.folder import note
from hexa.run.visualize import Look
from hexa.runtime import checkpoints
from tests.conftest import Says
from tests.evaluation.given import plain_images

TINY = {
    "network.widths": "[4, 8]",
    "batch_size": "32",
    "method.bn_groups": "2",
    "method.queue_size": "64",
}


def tiny(**changes: str) -> Experiment:
    return override(recipes.get("digits-hexa-moco"), TINY | changes)


def a_run(folder: Path, experiment: Experiment, fill: float | None = None) -> Path:
    """A run folder with one checkpoint, its weights drawn by the seed, or one convolution filled."""
    (folder / "checkpoints").mkdir(parents=True)
    experiments.dump(experiment, folder / "config.yaml")
    method = build_method(experiment, setting_of(experiment, 1000), Machine.of(experiment))
    if fill is not None:
        for parameter in method.parameters():
            parameter.data.fill_(fill)
    checkpoints.save(folder / "checkpoints", 3, {"method": method.state_dict()})
    return folder


def test_visualize_recipe(tmp_path: Path) -> None:
    """A recipe by name."""
    grid = Look.at("digits-hexa-moco", "digits").gallery(3)
    assert grid.heads == ("view", "perturbation × 64", "adversarial")
    view, delta, adversarial = grid.tiles.astype(int).swapaxes(0, 1)
    assert np.array_equal(delta - MID_GREY, 64 * (adversarial - view))
    assert np.abs(adversarial - view).max() == 1


def test_visualize_trained_run(tmp_path: Path) -> None:
    """The same configuration with all weights zero: its gradient is zero, so nothing moves."""
    trained = Look.at(a_run(tmp_path / "run", tiny()), None).gallery().tiles
    dead = Look.at(a_run(tmp_path / "dead", tiny(), fill=0.0), None).gallery().tiles
    assert (trained[:, 1] != MID_GREY).mean() > 0.5
    assert (dead[:, 1] == MID_GREY).all()
    assert np.array_equal(trained[:, 0], dead[:, 0])


def test_private_files_of_run(tmp_path: Path, says: Says) -> None:
    """Files that only a run's configuration names are opened on request."""
    named = plain_images(tmp_path / "private", dict.fromkeys(("a.png", "b.png"), (9, 9)))
    run = a_run(tmp_path / "run", override(tiny(), {"data": named}))
    picture = f"--out {tmp_path / 'a.png'} --num-images 2"
    for command in ("visualize", "figure view-space"):
        found = says(f"{command} {run} --out {tmp_path / 'a.png'}", status=2).err
        assert f"{named}', which are opened only on request" in found
        assert "--data" in found
    assert not (tmp_path / "a.png").exists()
    says(f"visualize {run} {picture} --data digits")
    says(f"visualize {run} {picture} --trust")
    note(named)  # as a training does
    says(f"visualize {run} {picture}")
