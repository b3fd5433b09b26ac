"""Pictures from recipes and from trained runs, of real images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexa import recipes
from hexa.config import UserError
from hexa.data import open_source
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.pictures import MID_GREY
from hexa.run.build import Machine, build_method, setting_of
from hexa.run.folder import note
from hexa.run.visualize import Look, visualize
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


def test_a_recipe_by_name(tmp_path: Path) -> None:
    grid = Look.at("digits-hexa-moco", "digits").gallery(3)
    assert grid.heads == ("view", "perturbation × 64", "adversarial")
    view, delta, adversarial = grid.tiles.astype(int).swapaxes(0, 1)
    assert np.array_equal(delta - MID_GREY, 64 * (adversarial - view))
    assert np.abs(adversarial - view).max() == 1


def test_the_picture_is_a_function_of_the_seed_and_the_only_file(tmp_path: Path) -> None:
    made = [
        visualize(tiny(), "digits", tmp_path / f"{n}.png", seed=s).read_bytes()
        for n, s in enumerate((0, 0, 1))
    ]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.png", "1.png", "2.png"]


def test_a_run_shows_its_trained_method(tmp_path: Path) -> None:
    """The same configuration with all weights zero: its gradient is zero, so nothing moves."""
    trained = Look.at(a_run(tmp_path / "run", tiny()), None).gallery().tiles
    dead = Look.at(a_run(tmp_path / "dead", tiny(), fill=0.0), None).gallery().tiles
    assert (trained[:, 1] != MID_GREY).mean() > 0.5
    assert (dead[:, 1] == MID_GREY).all()
    assert np.array_equal(trained[:, 0], dead[:, 0])


def test_columns_are_those_that_are_trained_on_and_their_sources() -> None:
    changes = {
        "hard_examples.adversarial.weight": "0",
        "hard_examples.late.kind": "cutmix",
        "hard_examples.late.source": "adversarial",
        "hard_examples.unused.kind": "cutmix",
        "hard_examples.unused.weight": "0",
    }
    heads = Look.at(tiny(**changes), "digits").gallery().heads
    assert heads == ("view", "perturbation × 64", "adversarial", "late of adversarial")


def test_files_that_only_a_runs_configuration_names_are_opened_on_request(
    tmp_path: Path, says: Says
) -> None:
    named = plain_images(tmp_path / "private", dict.fromkeys(("a.png", "b.png"), (9, 9)))
    run = a_run(tmp_path / "run", override(tiny(), {"data": named}))
    picture = ["--out", tmp_path / "a.png", "--num-images", "2"]
    for command in (["visualize", run], ["figure", "hard-examples", run]):
        found = says(*command, "--out", tmp_path / "a.png", status=2).err
        assert f"{named}', which are opened only on request" in found
        assert "--data" in found
    assert not (tmp_path / "a.png").exists()
    says("visualize", run, *picture, "--data", "digits")
    says("visualize", run, *picture, "--trust")
    note(named)  # as a training does
    says("visualize", run, *picture)


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither a run folder nor a recipe.*digits-hexa-moco"):
        visualize("digits-hexa-mocco", "digits", tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"config.yaml is missing"):
        visualize(str(tmp_path / "empty"), "digits", tmp_path / "a.png")
    run = a_run(tmp_path / "run", tiny())
    checkpoint = next((run / "checkpoints").iterdir())
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    with pytest.raises(UserError, match=r"no intact checkpoint.*hexa resume"):
        visualize(run, "digits", tmp_path / "a.png")
    assert list(tmp_path.glob("*.png")) == []


def test_the_views_are_those_of_the_configuration() -> None:
    """Without flips, colours and with crops of everything, a view is the image, resized."""
    changes = dict.fromkeys(("views.scale", "views.ratio"), "[1.0, 1.0]") | {"views.size": "8"}
    changes["views.jitter_probability"] = "0"
    shown = Look.at(tiny(**changes), "digits").gallery(6).tiles[:, 0]
    source = open_source("digits", "train")
    images = torch.stack([source.decode(i) for i in range(len(source))]).permute(0, 2, 3, 1).numpy()
    for tile in shown:
        assert (images == tile).all((1, 2, 3)).any()


def test_broken_images_are_passed_over_and_counted(tmp_path: Path, says: Says) -> None:
    sizes = [(60, 40), (30, 30), (33, 90), (40, 40), (7, 9), (8, 8)]
    data = plain_images(
        tmp_path / "photos", {f"{number}.png": size for number, size in enumerate(sizes)}
    )

    def look(*broken: int, status: int) -> Any:
        for number in broken:
            (tmp_path / "photos" / f"{number}.png").write_bytes(b"broken")
        options = (
            "--data",
            data,
            "--out",
            tmp_path / "a.png",
            *(f"--{name}={value}" for name, value in TINY.items()),
        )
        return says("visualize", "digits-hexa-moco", *options, status=status)

    said = look(1, 4, status=0).out
    assert "2 images could not be read and were skipped: " in said
    assert "4.png: not an image" in said
    (tmp_path / "a.png").unlink()
    assert "none of its images can be read" in look(*range(6), status=2).err
    assert not (tmp_path / "a.png").exists()
