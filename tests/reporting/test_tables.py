"""Tables for the terminal and Markdown."""

from __future__ import annotations

import statistics

from hexa.reporting.tables import best_of, mean_std


def test_mean_and_sample_deviation() -> None:
    values = [91.2, 93.4, 90.0, 95.1]
    assert mean_std(values) == f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
    assert mean_std([91.26]) == "91.3"
    assert mean_std([]) == "–"


def test_unmarked_best() -> None:
    """Nothing is best among equals or alone."""
    assert best_of([[1.0], [1.0]]) == best_of([[1.0], []]) == []
    assert best_of([[1.0, 2.0], [], [1.4]]) == [0]
