"""Charts for a log."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hexa.reporting import curves
from hexa.reporting.curves import Series, condense
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun


def test_single_run_charts(make_run: MakeRun) -> None:
    """One run gives a chart a group, with a curve a term."""
    run = read_run(make_run())
    charts = {chart.key: chart for chart in curves.charts([run])}
    assert list(charts)[:3] == ["knn", "loss", "accuracy"]
    titles = [charts[key].title for key in ("loss", "total loss", "data_wait")]
    assert titles == ["Loss", "Objective", "Waiting for data"]
    found = [name for name, _, _ in charts["loss"].legend]
    assert found == ["std", "adversarial", "cutmix"]
    slots = {name: slot for name, _, slot in charts["loss"].legend}
    assert charts["perturbation"].legend[0][2] == slots["adversarial"]
    assert charts["lambda"].legend[0][2] == slots["cutmix"]
    assert (
        charts["accuracy"].legend[0][1] == f"{100 * run.train[-1]['accuracy/std']:.1f} %"
    )  # a share, in percent


def test_multiple_run_charts(make_run: MakeRun) -> None:
    """Several runs give a chart a key, with a curve a run."""
    runs = [
        read_run(make_run("a", epochs=30)),
        read_run(make_run("b", seed=1, epochs=10, hard_examples={})),
    ]
    charts = {chart.key: chart for chart in curves.charts(runs)}
    found = [name for name, _, _ in charts["loss/std"].legend]
    assert found == ["a", "b"]
    assert charts["loss/std"].title == "Loss: std"
    assert [name for name, _, _ in charts["loss/cutmix"].legend] == ["a"]
    assert [name for name, _, _ in charts["knn over time"].legend] == ["a", "b"]


def test_curve_minutes(make_run: MakeRun) -> None:
    """Minutes are those of the journal's clock."""
    curve = curves._series(read_run(make_run()), "knn", "a", 0, "minutes")
    assert curve.x[-1] == pytest.approx(1.55)  # 300 steps of 0.31 s


def test_curve_condensing() -> None:
    """Condensing keeps the mean."""
    ys = [math.sin(i / 7) + (i % 3) for i in range(1600)]
    x, y = condense(
        Series(
            "a",
            0,
            np.arange(1600.0),
            np.array(ys),
        )
    )
    assert len(x) == 160
    assert x[3] == pytest.approx(34.5)
    assert y[3] == pytest.approx(sum(ys[30:40]) / 10)
    assert y.mean() == pytest.approx(np.mean(ys))
