"""Tables against naive means and deviations."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from matplotlib.text import Text

from hexa_paper import drawing, writing
from hexa_paper.plan import Plan
from hexa_paper.rows import EPOCHS, TIME, in_time, rows_of
from hexa_paper.studies import study
from tests.paper.conftest import costs_for, request_for, stored_run


def collected(name: str, data: str = "digits", **changes: object):  # type: ignore[no-untyped-def]
    chosen = study(name, data=data)
    plan = Plan(chosen, request_for(data, **changes), costs_for(chosen.arms))
    runs = [stored_run(job) for job in plan.final_jobs(plan.best_rates([]))]
    return plan, runs, rows_of(plan, runs)


def test_numbers_are_the_mean_and_sample_deviation_over_seeds() -> None:
    plan, runs, rows = collected("ablation", epochs=20, seeds=(0, 1, 5))
    assert [(row["comparison"], row["arm"]) for row in rows] == [
        (comparison, arm.name) for arm in plan.study.arms for comparison in (EPOCHS, TIME)
    ]
    assert {row["epochs"] for row in rows if row["comparison"] == EPOCHS} == {20}
    parsed = list(csv.DictReader(io.StringIO(writing.csv_text(rows))))
    assert len(parsed) == 12 * 2
    for row in parsed:
        arm = next(arm for arm in plan.study.arms if arm.name == row["arm"])
        values = [
            result["metrics"]["top1"]
            for run in runs
            if (run["arm"], run["epochs"]) == (arm.key, int(row["epochs"]))
            for result in run["results"]
            if result["title"] == row["metric"]
        ]
        assert len(values) == 3
        assert float(row["mean"]) == pytest.approx(np.mean(values), abs=1e-4)
        assert float(row["std"]) == pytest.approx(np.std(values, ddof=1), abs=1e-4)
    page = writing.markdown(plan, rows, [])
    first = rows[0]["scores"]["k-NN top-1"]["values"]
    assert f"{np.mean(first):.1f} ± {np.std(first, ddof=1):.1f}" in page
    assert "the time of 20 epochs of Std" in page


def test_one_seed_has_no_deviation() -> None:
    plan, _, rows = collected("ablation", epochs=2, seeds=(0,))
    assert {row["std"] for row in csv.DictReader(io.StringIO(writing.csv_text(rows)))} == {""}
    assert "±" not in writing.markdown(plan, rows, [])


def test_what_missed_the_time_is_not_compared_at_equal_time() -> None:
    plan, runs, rows = collected("ablation", epochs=4)
    timed = {row["key"]: row for row in rows if row["comparison"] == TIME}
    assert {key for key, row in timed.items() if not in_time(row)} == {"iv", "v"}
    best = max(
        (row for row in timed.values() if in_time(row)),
        key=lambda row: np.mean(row["scores"]["k-NN top-1"]["values"]),
    )
    page = writing.markdown(plan, rows, []).partition("## At equal time")[2]
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {best['arm']} |"))
    assert "**" in line
    assert not any("**" in line for line in page.splitlines() if line.startswith("| Std+Adv+Cmx |"))
    (drawn, _) = drawing.figures(plan, rows, runs).values()
    texts = " ".join(text.get_text() for text in drawn.findobj(Text))
    assert [part in texts for part in ("1 ep., 0.8×", "×: of the time")] == [True, True]
    assert "2 ep." in texts
