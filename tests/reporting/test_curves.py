"""Which charts a journal gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hexa.reporting import curves
from hexa.reporting.curves import Series, condense
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun


def test_one_run_gives_a_chart_a_group_with_a_curve_a_term(make_run: MakeRun) -> None:
    run = read_run(make_run())
    charts = {chart.key: chart for chart in curves.charts([run])}
    assert list(charts)[:3] == ["knn", "loss", "accuracy"]
    assert [name for name, _, _ in charts["loss"].legend] == ["std", "adversarial", "cutmix"]
    assert {
        "total loss",
        "perturbation",
        "zero_gradient",
        "lambda",
        "learning_rate",
        "data_wait",
    } <= set(charts)
    slots = {name: slot for name, _, slot in charts["loss"].legend}
    assert charts["perturbation"].legend[0][2] == slots["adversarial"]
    assert charts["lambda"].legend[0][2] == slots["cutmix"]
    assert (
        charts["accuracy"].legend[0][1] == f"{100 * run.train[-1]['accuracy/std']:.1f} %"
    )  # a share, in percent


def test_several_runs_give_a_chart_a_key_with_a_curve_a_run(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("a", epochs=30)),
        read_run(make_run("b", seed=1, epochs=10, hard_examples={})),
    ]
    charts = {chart.key: chart for chart in curves.charts(runs)}
    assert [name for name, _, _ in charts["loss/std"].legend] == ["a", "b"]
    assert [name for name, _, _ in charts["loss/cutmix"].legend] == ["a"]
    assert charts["knn over time"].values.header[0] == "minutes"
    assert (
        charts["knn over time"].values.rows[-1][0] == "1.55"
    )  # 300 steps of 0.31 s, by the journal's own clock
    assert charts["knn over steps"].values.header[0] == "step"
    assert charts["knn over steps"].values.rows[-1][0] == "300"
    assert charts["loss/std"].values.rows[-1][2] == "–"  # b ended before
    assert charts["loss/std"].values.rows[0][2] != "–"


def series(name: str, x: list[float], y: list[float], slot: int = 0) -> Series:
    return Series(name, slot, np.array(x, dtype=float), np.array(y, dtype=float))


def test_condensing_keeps_mean_and_range() -> None:
    ys = [math.sin(i / 7) + (i % 3) for i in range(1000)]
    x, y, low, high = condense(series("a", list(range(1000)), ys), limit=100)
    assert len(x) == 100
    assert x[3] == pytest.approx(34.5)
    assert y[3] == pytest.approx(sum(ys[30:40]) / 10)
    assert (low[3], high[3]) == (min(ys[30:40]), max(ys[30:40]))
    assert y.mean() == pytest.approx(np.mean(ys))
