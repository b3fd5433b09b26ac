"""`hexa speedrun`: its tracks, seconds of training, images drawn by the seed, what counts as reached."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hexa import recipes
from hexa.config import UserError
from hexa.data import open_source
from hexa.measure import speedrun as runs
from hexa.measure.costs import Costs
from hexa.recipes.experiment import override
from tests.conftest import Says

TINY = {
    "epochs": "1",
    "network.widths": "[4,8]",
    "method.queue_size": "32",
    "batch_size": "32",
    "views.size": "8",
}


def track(**fields: Any) -> runs.Track:
    """Ten digits of each class, judged by k-NN among all."""
    about = {
        "goal": "digits",
        "data": "digits",
        "target": 20.0,
        "protocol": "knn",
        "options": {"k": 5},
    }
    about |= {
        "measure": "top1",
        "per_class": 10,
        "recipe": "digits-moco-v2",
        "fields": {"batch_size": 16},
    }
    return runs.Track.model_validate(about | fields)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(**fields: Any) -> None:
        monkeypatch.setattr(runs, "tracks", lambda: {"T": track(**fields)})

    use()
    return use


def test_every_record_is_an_experiment_whose_fields_exist() -> None:
    for name, one in runs.tracks().items():
        made = override(
            recipes.get(one.recipe),
            one.fields | ({"start.weights": "timm:resnet18"} if one.starts else {}),
        )
        assert made.recipe == one.recipe, name
        assert one.starts == (one.parameters is None), name
        assert (one.seconds is None) == (one.result is None), name


@pytest.mark.parametrize("name", [name for name, one in runs.tracks().items() if one.result])
def test_a_record_says_what_its_file_says(name: str) -> None:
    """The mean seconds of five seeds that reach the target, by the fields of the record."""
    one = runs.track(name)
    result = json.loads(
        (Path(__file__).parents[2] / "benchmarks" / "speedrun" / str(one.result)).read_text()
    )
    assert sorted(row["seed"] for row in result["rows"]) == [0, 1, 2, 3, 4]
    assert one.seconds == round(float(np.mean([row["seconds"] for row in result["rows"]])))
    assert runs.reached(one, result)
    assert (result["track"], result["recipe"], result["fields"]) == (name, one.recipe, one.fields)
    assert not result["held_out"]


def test_seeds_train_on_images_of_their_own_and_none_is_run_twice(
    tried: Any, tmp_path: Path
) -> None:
    done = runs.speedrun("T", "digits", tmp_path, seeds=[0, 1], fields=TINY)
    assert [row["seed"] for row in done["rows"]] == [0, 1]
    assert all(
        row["seconds"] > 0 and row["losses"] and 0 <= row["metrics"]["top1"] <= 100
        for row in done["rows"]
    )
    drawn = []
    for seed in (0, 1):
        few = open_source(f"folder:{tmp_path / f'images-{seed}'}", "train")
        assert np.bincount(few.labels).tolist() == [10] * 10
        drawn.append({file.name for file in (tmp_path / f"images-{seed}").rglob("*.png")})
    assert drawn[0] != drawn[1]
    # the images are those of the source, not others
    whole, file = open_source("digits", "train"), next((tmp_path / "images-0").rglob("*.png"))
    few = open_source(f"folder:{tmp_path / 'images-0'}", "train")
    at = next(place for place, path in enumerate(few.paths) if path.endswith(file.name))
    assert torch.equal(few.decode(at), whole.decode(int(file.stem)))
    before = (tmp_path / runs.RESULT).read_text()
    assert runs.speedrun("T", "digits", tmp_path, seeds=[1], fields=TINY)["rows"] == done["rows"]
    assert (tmp_path / runs.RESULT).read_text() == before


def test_a_seed_that_was_interrupted_begins_anew(tried: Any, tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir(parents=True)
    (tmp_path / "seed-0" / "config.yaml").write_text("half of a run")
    assert len(runs.speedrun("T", "digits", tmp_path, seeds=[0], fields=TINY)["rows"]) == 1
    assert (tmp_path / "seed-0" / "config.yaml").read_text() == "half of a run"
    assert (tmp_path / "seed-0-2" / "backbone.safetensors").exists()


def test_a_search_never_opens_test_images(
    tried: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def evaluate(protocol: str, backbone: str, data: str, **options: Any) -> dict[str, Any]:
        asked.append({"data": data, **options})
        return {"metrics": {"top1": 50.0}}

    monkeypatch.setattr(runs, "evaluate", evaluate)
    runs.speedrun("T", "digits", tmp_path / "a", seeds=[0], fields=TINY, held_out=True)
    assert asked[-1]["holdout"] == 0.1
    runs.speedrun("T", "digits", tmp_path / "b", seeds=[0], fields=TINY)
    assert "holdout" not in asked[-1]
    tried(test_per_class=5)
    runs.speedrun("T", "digits", tmp_path / "c", seeds=[0], fields=TINY, held_out=True)
    scored, whole = open_source(asked[-1]["data"], "test"), open_source("digits", "train")
    assert len(scored) == 50
    learned = {Path(path).name for path in open_source(asked[-1]["data"], "train").paths}
    for place, path in enumerate(scored.paths):
        assert Path(path).name not in learned
        assert torch.equal(scored.decode(place), whole.decode(int(Path(path).stem)))


def test_what_counts_as_reached() -> None:
    rows: list[dict[str, Any]] = [
        {"metrics": {"top1": 19.0, "clean": 70.0}, "start": {"clean": 69.0}},
        {"metrics": {"top1": 22.0, "clean": 60.0}, "start": {"clean": 61.0}},
    ]
    result = {"rows": rows}
    assert runs.reached(track(), result)
    assert not runs.reached(track(target=20.6), result)
    assert runs.reached(track(not_below="clean"), result)
    rows[0]["start"]["clean"] = 69.1
    assert not runs.reached(track(not_below="clean"), result)


def test_weights_begun_from_are_scored_on_the_images_of_each_seed(
    tried: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def evaluate(protocol: str, backbone: str, data: str, **options: Any) -> dict[str, Any]:
        asked.append((Path(backbone).name, data))
        return {"metrics": {"top1": 50.0, "clean": 40.0}}

    tried(not_below="clean")
    monkeypatch.setattr(runs, "evaluate", evaluate)
    assert (
        "start"
        not in runs.speedrun("T", "digits", tmp_path / "start", seeds=[0], fields=TINY)["rows"][0]
    )
    asked.clear()
    tried(starts=True, not_below="clean", test_per_class=5)
    weights = (tmp_path / "start" / "seed-0").rename(tmp_path / "weights")
    done = runs.speedrun(
        "T", "digits", tmp_path / "T", start=str(weights), seeds=[0, 1], fields=TINY
    )
    assert [row["start"]["clean"] for row in done["rows"]] == [40.0, 40.0]
    assert [name for name, _ in asked] == ["seed-0", "weights", "seed-1", "weights"]
    assert asked[0][1] == asked[1][1] != asked[2][1] == asked[3][1]
    assert runs.table(runs.track("T"), done).header == (
        "seed",
        "seconds of one core",
        "top1",
        "clean",
        "start's",
    )


def test_the_command(tried: Any, tmp_path: Path, says: Says) -> None:
    fields = [word for name, value in TINY.items() for word in (f"--{name}", value)]
    command = ["speedrun", "T", "--data", "digits", "--seeds", "0", "--out", tmp_path, *fields]
    said = says(*command).out
    assert all(one in said for one in ("top1 of 20 ", "no record yet"))
    assert json.loads((tmp_path / runs.RESULT).read_text())["fields"] == {"batch_size": 16} | TINY
    assert "another attempt" in says(*command, "--optimizer.learning_rate", "1", status=2).err
    assert says("speedrun").out.startswith("T: digits; no record yet")


def test_a_plan_says_what_a_seed_would_take_here(
    tried: Any, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """Images × epochs × seconds at the size of the views, the head's own in the first epochs, on one core."""
    costs, asked = Costs(16, read=0.25, steps={0: 0.25, 3: 0.75}, look=0.0, setup=5.0), []
    monkeypatch.setattr(
        runs, "measure", lambda *a, **k: asked.append((len(a[1]), torch.get_num_threads())) or costs
    )
    half = SimpleNamespace(
        process_time=itertools.count(0).__next__, perf_counter=itertools.count(0, 2).__next__
    )
    monkeypatch.setattr(runs, "time", half)  # others use the core half of the time
    tried(fields={"epochs": 3, "views.size": 8})
    said = says("speedrun", "T", "--data", "digits", "--plan").out
    assert f"about {(5 + 300 * (0.25 + 0.75 / 4)) / 2:,.0f} s of one core for each seed" in said
    assert asked == [(100, 1)]
    for wrong, said in (
        ({"per_class": 5000}, "than the 5000 asked for"),
        ({"parameters": 9}, "allows 9 parameters"),
    ):
        tried(**wrong)
        with pytest.raises(UserError, match=said):
            runs.foreseen("T", "digits", None, {})
    headed = override(
        recipes.get("adapt"),
        {"epochs": 3, "start.freeze_backbone": 1, "start.weights": "timm:resnet18"},
    )
    plain = override(recipes.get("digits-moco-v2"), {"epochs": 2, "views.size": 8, "batch_size": 5})
    assert costs.run(plain, 10) == 5 + 10 * (2 * 0.25 + 2 * 0.75 / 4)
    assert (
        costs.run(override(plain, {"max_steps": 1}), 10) == 5 + 10 * (2 * 0.25 + 2 * 0.75 / 4) / 4
    )
    assert costs.run(headed, 10) == 5 + 10 * ((0.25 + 0.25 * 14**2) + 2 * (0.25 + 0.75 * 14**2))


def test_mistakes(tried: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(said: str, data: str = "digits", **more: Any) -> None:
        with pytest.raises(UserError, match=said):
            runs.speedrun("T", data, tmp_path, **more)

    with pytest.raises(UserError, match="unknown track 'Z'"):
        runs.track("Z")
    refused("begins from random weights: leave --start out", start="random:resnet18")
    tried(starts=True)
    refused("begins from given weights: give --start")
    for other in ("[]", "3", "someone's"):
        (tmp_path / runs.RESULT).write_text(other)
        tried()
        refused("has another attempt")
    assert (tmp_path / runs.RESULT).read_text() == "someone's"
    (tmp_path / runs.RESULT).unlink()
    refused("--seed: the track says it", seeds=[0], fields={"seed": "1"})
    refused("learning_rate", seeds=[0], fields={"optimizer.lerning_rate": "1"})
    for number in range(20):
        broken = tmp_path / "broken" / "train" / "ab"[number % 2] / f"{number}.jpg"
        broken.parent.mkdir(parents=True, exist_ok=True)
        broken.write_text("no image")
    refused(
        "a track needs the images as published",
        f"folder:{tmp_path / 'broken'}",
        seeds=[0],
        fields=TINY,
    )
    tried(parameters=100)
    refused("allows 100 parameters, and the backbone has", seeds=[0], fields=TINY)
    assert not (tmp_path / "seed-0").exists()
    tried()
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("leave out torchrun")
