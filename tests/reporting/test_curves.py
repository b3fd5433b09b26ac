"""Which charts a journal gives."""

from __future__ import annotations

import json
import math
import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from hexa.reporting import curves
from hexa.reporting.curves import Series, condense, line_chart
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun, append

SVG = "{http://www.w3.org/2000/svg}"


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


def test_an_unknown_quantity_gets_a_chart_too(make_run: MakeRun) -> None:
    folder = make_run()
    append(
        folder,
        *({"event": "train", "step": step, "prototype_entropy/mine": step / 7} for step in (5, 10)),
    )
    charts = {chart.key: chart for chart in curves.charts([read_run(folder)])}
    assert charts["prototype_entropy"].title == "Prototype entropy"
    assert charts["prototype_entropy"].values.header == ("epoch", "mine")


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


def test_runs_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    runs = [read_run(make_run("x/run")), read_run(make_run("y/run"))]
    assert curves.labels(runs) == ["x/run", "y/run"]
    assert len(set(curves.labels([runs[0], runs[0]]))) == 2


def test_nothing_is_drawn_of_a_single_point_or_of_no_numbers(make_run: MakeRun) -> None:
    folder = make_run()
    lines = (
        {"event": "train", "loss/std": None, "note": "text"} | more
        for more in ({"step": 1, "a": 1}, {"step": 2})
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert curves.charts([read_run(folder)]) == []


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


def test_a_curve_goes_through_its_points() -> None:
    xs, ys = [0.0, 5.0, 10.0], [20.0, 60.0, 40.0]
    svg = line_chart([series("a", xs, ys, 3)], "key", "epoch", "%")
    tree = ElementTree.fromstring(svg)
    (curve,) = (group for group in tree.iter(f"{SVG}g") if group.get("class") == "curve")
    assert (curve.get("data-series"), curve.get("data-slot")) == ("a", "3")
    assert "var(--s3)" in svg
    assert re.findall("#[0-9a-f]{6}", svg) == []  # the page says which colours
    x0, x1, left, right, y0, y1, bottom, top = json.loads(tree.get("data-axes", ""))
    path = next(part.get("d", "") for part in curve.iter(f"{SVG}path"))
    pixels = np.array(re.findall(r"([\d.]+) ([\d.]+)", path), dtype=float)
    assert x0 + (pixels[:, 0] - left) / (right - left) * (x1 - x0) == pytest.approx(xs)
    assert y0 + (pixels[:, 1] - bottom) / (top - bottom) * (y1 - y0) == pytest.approx(ys, rel=1e-4)


@pytest.mark.parametrize("ys", [[94.1, 93.9], [99.9, 100.0], [0.0, 0.2], [10.0, 90.0]])
def test_a_change_of_few_points_is_drawn_small(ys: list[float]) -> None:
    svg = line_chart([series("a", [0.0, 1.0], ys)], "key", "epoch", "%")
    low, high = json.loads(ElementTree.fromstring(svg).get("data-axes", ""))[4:6]
    assert low <= min(ys) <= max(ys) <= high
    assert high - low >= 5
    assert low >= -0.05 * (max(ys) - min(ys)) - 0.02


@pytest.mark.parametrize("ys", [[7.001, 7.004], [12_340.0, 12_360.0], [0.0, 1.0], [2e-5, 2.01e-5]])
def test_no_two_ticks_have_one_text(ys: list[float]) -> None:
    svg = line_chart([series("a", [100.0, 200.0], ys)], "key", "epoch", "")
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert len(texts) > 8
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("ys", [[0.0, 0.0], [-3e99, 4e99], [1e-30, 2e-30]])
def test_odd_values_are_drawn_too(ys: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = line_chart([series("<&>", [0.0, 1.0], ys)], "<&>", "epoch", "", from_zero=True)
    assert 'data-series="&lt;&amp;&gt;"' in svg
    ElementTree.fromstring(svg)
