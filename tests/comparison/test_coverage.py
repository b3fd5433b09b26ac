"""Intervals of comparisons hold as often as they say, by the simulation of benchmarks/coverage.py."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from benchmarks.coverage import GAINS, GROUP, UNEQUAL, rows

#: Comparisons of a row.
COMPARISONS = 300
#: Shares of intervals that are to hold the true difference.
LEAST = 0.94
MOST = 0.97
#: Largest share of comparisons that call one of two equal backbones, the second, better.
WRONG = 0.025


def allowed(share: float) -> tuple[float, float]:
    """Return the counts that contain 95 % of the draws if this is the true share."""
    low, high = binom.interval(0.95, COMPARISONS, share)
    return float(low), float(high)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "labelled", "group"),
    [
        (2, 100, 1),
        (20, 100, 1),
        (2, 100, GROUP),
        (2, 300, 1),
        (2, 300, GROUP),
        (2, 300, UNEQUAL),
    ],
)
def test_interval_coverage(classes: int, labelled: int, group: int) -> None:
    """Intervals have their nominal coverage."""
    found = [row for row in rows(classes, labelled, 1.0, group, COMPARISONS) if row["decides"]]
    assert len(found) == 1
    held = round(found[0]["covered"] * COMPARISONS)
    assert allowed(LEAST)[0] <= held <= allowed(MOST)[1]
    assert found[0]["better"] * COMPARISONS <= allowed(WRONG)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "least"), [(1, 0.2), (2, 0.8)])
def test_true_gain_power(gain: int, least: float) -> None:
    """About 3 and 8 points, by 300 labelled images."""
    made = rows(2, 300, GAINS[2][gain], 1, COMPARISONS)
    found = next(row for row in made if row["decides"])
    assert found["better"] * COMPARISONS >= allowed(least)[0]
    assert found["worse"] == 0
