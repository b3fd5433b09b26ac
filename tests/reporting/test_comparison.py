"""Differences of runs."""

from __future__ import annotations

from hexa.reporting import comparison
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun


def test_run_differences(make_run: MakeRun) -> None:
    """Differences name fields and absent parts."""
    runs = [read_run(make_run("a")), read_run(make_run("b", seed=1, hard_examples={}))]
    rows = {row[0]: row[1:] for row in comparison.differences(runs, ["a", "b"]).rows}
    assert rows == {
        "seed": ("0", "1"),
        "hard_examples.adversarial": ("present", "–"),
        "hard_examples.cutmix": ("present", "–"),
    }
