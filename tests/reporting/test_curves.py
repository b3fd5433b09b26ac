"""Which charts a journal gives."""

from __future__ import annotations

import json

from hexa.reporting import curves
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun


def test_one_run_gives_a_chart_a_group_with_a_curve_a_term(make_run: MakeRun) -> None:
    charts = {chart.key: chart for chart in curves.charts([read_run(make_run())])}
    assert list(charts)[:3] == ["knn", "loss", "accuracy"]
    assert [name for name, _, _ in charts["loss"].legend] == ["std", "adversarial", "cutmix"]
    assert {"total loss", "perturbation", "zero_gradient", "lambda", "learning_rate", "data_wait"} <= set(charts)
    slots = {name: slot for name, _, slot in charts["loss"].legend}
    assert charts["perturbation"].legend[0][2] == slots["adversarial"]
    assert charts["lambda"].legend[0][2] == slots["cutmix"]


def test_shares_are_shown_in_percent(make_run: MakeRun) -> None:
    run = read_run(make_run())
    chart = next(chart for chart in curves.charts([run]) if chart.key == "accuracy")
    last = 100 * run.train[-1]["accuracy/std"]
    assert chart.legend[0][1] == f"{last:.1f} %"


def test_an_unknown_quantity_gets_a_chart_too(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as file:
        for step in (5, 10):
            file.write(json.dumps({"event": "train", "step": step, "prototype_entropy/mine": step / 7}) + "\n")
    charts = {chart.key: chart for chart in curves.charts([read_run(folder)])}
    assert charts["prototype_entropy"].title == "Prototype entropy"
    assert charts["prototype_entropy"].header == ("epoch", "mine")


def test_several_runs_give_a_chart_a_key_with_a_curve_a_run(make_run: MakeRun) -> None:
    runs = [read_run(make_run("a", epochs=30)), read_run(make_run("b", seed=1, epochs=10, hard_examples={}))]
    charts = {chart.key: chart for chart in curves.charts(runs)}
    assert [name for name, _, _ in charts["loss/std"].legend] == ["a", "b"]
    assert [name for name, _, _ in charts["loss/cutmix"].legend] == ["a"]
    assert charts["knn over time"].header[0] == "minutes"
    assert charts["loss/std"].rows[-1][2] == "–"  # b ended before
    assert charts["loss/std"].rows[0][2] != "–"


def test_runs_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    runs = [read_run(make_run("x/run")), read_run(make_run("y/run"))]
    assert curves.labels(runs) == ["x/run", "y/run"]
    assert len(set(curves.labels([runs[0], runs[0]]))) == 2


def test_no_numbers_no_charts(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "metrics.jsonl").write_text('{"event": "train", "step": 1, "loss/std": null, "note": "text"}\n')
    assert curves.charts([read_run(folder)]) == []
