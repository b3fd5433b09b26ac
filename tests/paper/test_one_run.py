"""Learning curves as published: one run that is measured at several epochs, and the training of classifiers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa_paper import plan, reproduce, storage, work
from hexa_paper.studies import KNN
from tests.paper.conftest import TINY, costs_for


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
