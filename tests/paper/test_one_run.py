"""Learning curves as published: one run that is measured at several epochs, and the training of classifiers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hexa import cli
from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa_paper import plan, reproduce, storage, work
from hexa_paper.studies import KNN, study
from tests.paper.conftest import TINY, costs_for, jobs_of, request_for


def test_one_run_is_measured_at_four_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "costs_of", costs_for)
    monkeypatch.setattr(plan.Plan, "measures", lambda _: [replace(KNN, source="digits")])
    given: dict[str, Any] = {"seeds": (0,), "epochs": 4, "rates": (0.03,), "one_run": True}
    out = reproduce("learning-curves", "digits", out=tmp_path / "study", **given, **TINY)
    found = json.loads((out / storage.RESULT).read_text())
    assert [run["name"] for run in found["runs"]] == ["i-4ep-lr0.03-seed0", "ii-4ep-lr0.03-seed0"]
    rows = [(row["key"], row["epochs"]) for row in found["summary"]]
    assert rows == [(key, epochs) for key in ("i", "ii") for epochs in (4, 3, 2, 1)]
    run = out / "runs" / "ii-4ep-lr0.03-seed0"
    steps = sorted(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").iterdir())
    assert len(steps) == 4
    by_epochs = {row["epochs"]: row["scores"] for row in found["summary"] if row["key"] == "ii"}
    for number, step in enumerate(steps, 1):
        backbone = str(run / "checkpoints" / f"step-{step:08d}.pt")
        expected = evaluate("knn", backbone, "digits", device="cpu")["metrics"]["top1"]
        assert by_epochs[number]["k-NN top-1"]["values"] == [expected]
    assert (out / "figures" / "learning-curves-k-nn-top-1.png").is_file()
    with pytest.raises(UserError, match="one_run"):
        reproduce("learning-curves", "digits", out=out, **(given | {"one_run": False}), **TINY)


def test_published_curves_are_the_default_at_the_published_settings() -> None:
    """(a) One run of 800 epochs at 200, 400, 600 and 800; (b) the classifier's training, against SwAV, 200 epochs."""
    a, b = (
        study("learning-curves", method=method, scale="full") for method in ("moco", "dcluster")
    )
    jobs = jobs_of(a, request_for("folder:imagenet", seeds=(0,)))
    assert [(job.arm.recipe, job.experiment.epochs) for job in jobs] == [
        ("imagenet-moco-v2-800", 800),
        ("imagenet-hexa-moco-800", 800),
    ]
    for job in jobs:
        assert [measure.epochs for measure in job.measures] == [800, 600, 400, 200]
        assert (job.experiment.training.keep_every, job.experiment.training.checkpoint_every) == (
            200,
            1,
        )
    assert [arm.recipe for arm in b.arms] == [
        "imagenet-swav-200",
        "imagenet-hexa-dcluster-8crop-200",
    ]
    assert b.lengths == (1.0,)
    assert [(m.protocol, m.options) for m in b.measures] == [("linear", {"preset": "swav"})]


def test_a_plan_says_what_each_source_is_measured_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = f"folder:{tmp_path}/imagenet", tmp_path / "study"
    command = f"reproduce table1 --data {images} --scale full --seeds 0 --out {out} --plan"
    assert (
        cli.main(
            f"{command} --evaluate-on {images} cifar10 --data-voc voc:{tmp_path}/VOCdevkit".split()
        )
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        f"linear moco on {images}",
        "linear cifar on cifar10",
        f"svm on voc:{tmp_path}/VOC",
    ):
        assert part in said
