"""Evaluations from the outside: what a result carries, what it is scored on, and which mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hexa.cli import main
from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.evaluation import evaluate, results
from hexa.evaluation.protocols import svm
from hexa.reporting.runs import read_run
from hexa.reporting.scores import evaluations
from hexa.runtime.packages import commit
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.data.sources.test_opening import write_parquet
from tests.evaluation.given import QUIET, SMALL


def pictures(folder: Path, classes: dict[str, int], shade: int = 0) -> str:
    """A folder of class folders, each class a colour of its own."""
    for number, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            colour = (60 * number, 20 * i % 256, 255 - 60 * number - shade)
            Image.new("RGB", (10, 10), colour).save(folder / name / f"{i}.png")
    return f"folder:{folder}"


def test_result_provenance(tmp_path: Path) -> None:
    """A result names its backbone, data and protocol."""
    backbone = random_backbone(SMALL, 8)
    save_backbone(backbone, tmp_path / "b.safetensors")
    out = tmp_path / "result.json"
    found = evaluate(
        "knn", str(tmp_path / "b.safetensors"), "digits", k=20, seed=3, out=out, **QUIET
    )
    assert json.loads(out.read_text()) == found
    assert found["protocol"] == "knn/k20-t0.07"
    assert found["deviations"] == {"k": [200, 20]}
    assert found["preset"] == "default"
    assert found["seed"] == 3
    assert found["data"] == "digits"
    assert found["precision"] == "fp32"
    assert found["backbone_facts"]["hash"] == backbone.content_hash()
    fit, test = found["data_facts"].values()
    assert [(one["split"], one["images"]) for one in (fit, test)] == [
        ("train", 1347),
        ("test", 450),
    ]
    assert fit["fingerprint"] != test["fingerprint"]
    assert set(found["metrics"]) == {"top1", "top5", "balanced_accuracy", "majority_class"}


def test_holdout_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holdout never touches the test split."""
    backbone = random_backbone(SMALL, 8)
    opened: list[str] = []

    def watched(spec: str, split: str | None = None, **_: Any) -> Source:
        opened.append(f"{spec}#{split}")
        return open_source(spec, split)

    monkeypatch.setattr("hexa.data.open_source", watched)
    found = evaluate("knn", backbone, "digits", holdout=0.2, seed=1, **QUIET)
    assert opened == ["digits#train"]
    facts = found["data_facts"]
    assert found["protocol"] == "knn/k200-t0.07-holdout0.2"
    assert facts["test"]["split"] == "train"
    assert facts["fit"]["images"] + facts["test"]["images"] == 1347
    assert facts["test"]["images"] == pytest.approx(0.2 * 1347, abs=5)
    how = {**QUIET, "holdout": 0.2}
    again = evaluate("knn", backbone, "digits", seed=1, **how)
    other = evaluate("knn", backbone, "digits", seed=2, **how)
    assert again["metrics"] == found["metrics"]
    assert again["data_facts"] == facts != other["data_facts"]
    few = evaluate("knn", backbone, "digits", seed=2, images=100, **how)
    of_all = open_source("digits", "train").fingerprint
    drawn = []
    for result in (again, other, few):
        drawn += result["data_facts"].values()
    assert {side["part_of"] for side in drawn} == {of_all}
    assert len({side["fingerprint"] for side in drawn}) == 5


def test_test_images_in_terminal_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations that differ by --test-data alone are both reported, with what they were scored on."""
    run = a_run(tmp_path)
    many = pictures(tmp_path / "many", {"a": 6, "b": 6})
    for name, shade in (("one", 20), ("other", 40)):
        other = pictures(tmp_path / name, {"a": 3, "b": 4}, shade)
        command = ["evaluate", "knn", str(run), "--data", many, "--test-data", other]
        assert main([*command, "--device", "cpu"]) == 0
        assert f" on {many}, scored on {other}: top1" in capsys.readouterr().out
    facts = [result["data_facts"]["test"] for result in read_run(run).results]
    assert all("part_of" not in side for side in facts)
    rows = evaluations([read_run(run)], ["run"]).rows
    named = [row[1] for row in rows if row[2] == "top1"]
    expected = [f"{many}, scored on {side['source']}" for side in facts]
    assert named == expected


def test_run_results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of a run are collected."""
    run = a_run(tmp_path)
    first = evaluate("knn", run, "digits", **QUIET)
    second = evaluate("knn", str(run), "digits", k=5, **QUIET)
    assert json.loads((run / "results.json").read_text()) == [first, second]
    assert first["commit"] == commit()
    assert sorted(path.name for path in run.iterdir()) == [
        "backbone.safetensors",
        "config.yaml",
        "results.json",
    ]
    (run / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json"):
        results.append({"metrics": {}}, run / "results.json")
    assert (run / "results.json").read_text() == "{"
    monkeypatch.setattr("hexa.evaluation.features.extract", None)  # it is found out before the work
    with pytest.raises(UserError, match=r"results\.json"):
        evaluate("knn", run, "digits", **QUIET)
    (run / "results.json").write_text("[]")
    (run / "results.json").rename(tmp_path / "others.json")
    (run / "results.json").symlink_to(tmp_path / "others.json")
    with pytest.raises(UserError, match=r"results\.json: is a link out of its folder"):
        results.append({"metrics": {}}, run / "results.json")


def a_run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("recipe: of-yesterday\n")
    save_backbone(random_backbone(SMALL, 8), run / "backbone.safetensors")
    return run


def test_nan_weights() -> None:
    """Weights that are no numbers give no result."""
    backbone = load_backbone("random:small-resnet-4-8-8")
    next(backbone.network.parameters()).data.fill_(float("nan"))
    with pytest.raises(
        UserError, match=r"features of 100 % of the images of digits.* are not finite"
    ):
        evaluate("knn", backbone, "digits", **QUIET)


@pytest.mark.parametrize(
    ("protocol", "options"), [("knn", {}), ("low-shot", {"shots": 2, "draws": 2, "costs": 0.5})]
)
def test_constant_network_note(
    monkeypatch: pytest.MonkeyPatch, protocol: str, options: dict[str, Any]
) -> None:
    """A network that outputs a constant is noted."""
    # no other processes, which take seconds to start
    monkeypatch.setattr(svm, "cpu_count", lambda: 1)
    backbone = load_backbone("random:small-resnet-4-8")
    for parameter in backbone.network.parameters():
        parameter.data.zero_()
    for one, noted in ((backbone, True), ("pixels:8", False)):
        notes = evaluate(protocol, one, "digits", **QUIET, **options)["notes"]
        assert ("no better than guessing (10.0 %): look at the run" in notes) == noted


def test_unlabelled_test_image(tmp_path: Path) -> None:
    """A test image without label is refused."""
    write_parquet(tmp_path / "train.parquet", [1, 2, 3], [0, 1, 2])
    write_parquet(tmp_path / "test.parquet", [4, 5, 6], [0, -1, 2])
    with pytest.raises(UserError, match="missing or negative for 1 of 3 images"):
        evaluate("knn", "pixels:6", f"parquet:{tmp_path}", **QUIET)


def test_unreadable_images_in_training(tmp_path: Path) -> None:
    """What training replaces is noted, and what is not scored, once."""
    for shade, split in enumerate(("train", "test")):
        pictures(tmp_path / split, {"a": 6, "b": 6}, shade)
        (tmp_path / split / "a/0.png").write_text("no image")
    how = QUIET | {"epochs": 2, "learning_rates": 0.01}
    found = evaluate("fine-tune", random_backbone(SMALL, 8), f"folder:{tmp_path}", **how)
    said = " ".join(found["notes"])
    assert "unreadable training images, replaced by others: " in said
    assert said.count("1 of 12 test images could not be read: ") == 1
    assert found["metrics"]["majority_class"] == pytest.approx(100 * 6 / 11)
