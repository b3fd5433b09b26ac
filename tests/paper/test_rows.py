"""Tables against naive means and deviations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from hexa_paper import drawing, tables
from hexa_paper.plan import Plan
from hexa_paper.tables import EPOCHS, TIME, Row, in_time
from tests.paper.conftest import finish, plan_of


def collected(name: str, out: Path, **options: Any) -> tuple[Plan, list[Row]]:
    plan = plan_of(name, out=out, rates=(0.03,), **options)
    for job in plan.final():
        finish(job, out)
    return plan, tables.write(plan)


def test_means_and_deviations(tmp_path: Path) -> None:
    plan, rows = collected(
        "ablation",
        tmp_path,
        epochs=20,
        seeds=(0, 1, 5),
    )
    found = [(row["comparison"], row["arm"]) for row in rows]
    expected = [(comparison, arm.name) for arm in plan.study.arms for comparison in (EPOCHS, TIME)]
    assert found == expected
    lengths = {row["epochs"] for row in rows if row["comparison"] == EPOCHS}
    assert lengths == {20}
    written = json.loads((tmp_path / tables.RESULT).read_text())["summary"]
    scored = [(row, *score) for row in written for score in row["scores"].items()]
    assert len(scored) == 12 * 2
    for row, metric, score in scored:
        values = []
        for job in plan.final():
            same_arm = job.arm.name == row["arm"]
            same_length = job.experiment.epochs == row["epochs"]
            if not (same_arm and same_length):
                continue
            for measure, result in job.measured(tmp_path):
                if measure.title == metric:
                    values.append(result["metrics"]["top1"])
        assert len(values) == 3
        assert score["mean"] == pytest.approx(np.mean(values))
        assert score["std"] == pytest.approx(np.std(values, ddof=1))
    page = (tmp_path / tables.PAGE).read_text()
    first = rows[0]["scores"]["k-NN top-1"]["values"]
    mean = np.mean(first)
    deviation = np.std(first, ddof=1)
    assert f"{mean:.1f} ± {deviation:.1f}" in page
    assert "the time of 20 epochs of Std" in page


def test_arms_beyond_time(tmp_path: Path) -> None:
    """Arms that do not fit into the time are not the best; one seed has no deviation."""
    plan, rows = collected("ablation", tmp_path, epochs=4, seeds=(0,))
    assert {score["std"] for row in rows for score in row["scores"].values()} == {None}
    timed = {row["key"]: row for row in rows if row["comparison"] == TIME}
    found = {key for key, row in timed.items() if not in_time(row)}
    assert found == {"iv", "v", "vi"}
    best = max(
        (row for row in timed.values() if in_time(row)),
        key=lambda row: np.mean(row["scores"]["k-NN top-1"]["values"]),
    )
    page = (tmp_path / tables.PAGE).read_text()
    assert "±" not in page
    lines = page.partition("## At equal time")[2].splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {best['arm']} |"))
    assert "**" in line
    late = [line for line in lines if line.startswith("| Std+Adv+Cmx |")]
    assert not any("**" in line for line in late)
    (drawn, _) = drawing.figures(plan, rows).values()
    texts = " ".join(text.get_text() for text in drawn.findobj(Text))
    assert "2 ep., 1.2×" in texts
