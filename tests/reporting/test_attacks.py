"""Evaluations by `robust` as curves over the strength of the attack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hexa.reporting import attacks
from hexa.reporting.report import render
from hexa.reporting.runs import Run
from tests.reporting.conftest import MakeRun, run_with

PGD = "robust/pgd20x2-eps1,8"


def attacked(
    folder: Path, metrics: dict[str, Any], protocol: str = PGD, branch: str = "main"
) -> Run:
    result = {
        "protocol": protocol,
        "preset": "pgd",
        "metrics": metrics,
        "data": "digits",
        "branch": branch,
    }
    return run_with(folder, *json.loads((folder / "results.json").read_text()), result)


def test_arms_stand_side_by_side(make_run: MakeRun) -> None:
    plain = attacked(make_run("plain"), {"top1": 90.0, "robust@8": 20.0, "robust@1": 80.0})
    hexa = attacked(make_run("hexa"), {"top1": 88.0, "robust@1": 84.0, "robust@8": 40.0})
    hexa = attacked(
        hexa.folder, {"top1": 80.0, "robust@1": 79.0, "robust@8": 60.0}, f"{PGD}-branchaux", "aux"
    )
    (chart,) = attacks.charts([plain, hexa], ["plain", "hexa"])
    assert chart.values.header == ("ε in grey levels", "plain", "hexa")
    assert chart.values.rows == (("0", "90", "88"), ("1", "80", "84"), ("8", "20", "40"))
    assert [last for _, last, _ in chart.legend] == ["20.0 %", "40.0 %"]
    assert "Accuracy under attack" in render([plain, hexa])
