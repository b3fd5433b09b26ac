"""Tables for the terminal and Markdown."""

from __future__ import annotations

import statistics

import pytest

from hexa.reporting.tables import (
    format_duration,
    format_number,
    markdown_table,
    mean_std,
)

ROWS = [
    {"features": "raw pixels", "k-NN": 95.0, "5 labels": [86.0, 88.0, 84.0]},
    {"features": "HEXA|MoCo", "k-NN": 98.25, "5 labels": [92.0, 93.0]},
    {"features": "not run", "k-NN": None},
]


def test_mean_and_sample_deviation() -> None:
    values = [91.2, 93.4, 90.0, 95.1]
    assert mean_std(values, 2) == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert mean_std([91.26]) == "91.3"
    assert mean_std([]) == "–"


def test_numbers() -> None:
    shown = {
        0: "0",
        0.06: "0.06",
        3.14159: "3.14",
        100.0: "100",
        123456.0: "123,456",
        1e-5: "1e-05",
        -0.5: "-0.5",
    }
    assert {value: format_number(value) for value in shown} == shown
    for value in (1.5e9, 2.25e-7, 1e20, -3e-9):
        assert float(format_number(value, 4)) == pytest.approx(value)


def test_durations_never_say_sixty_seconds() -> None:
    assert format_duration(59.7) == "1 min 0 s"
    assert format_duration(3599.8) == "1 h 0 min"
    assert format_duration(0.04) == "0.0 s"


def test_markdown() -> None:
    lines = markdown_table(ROWS).splitlines()
    assert lines[0] == "| features | k-NN | 5 labels |"
    assert lines[1] == "|---|---:|---:|"
    assert lines[2] == "| raw pixels | 95.0 | 86.0 ± 2.0 |"
    assert lines[3] == "| HEXA\\|MoCo | **98.2** | **92.5 ± 0.7** |"
    assert lines[4] == "| not run | – | – |"
    assert markdown_table([]) == ""


def test_nothing_is_best_among_equals_or_alone() -> None:
    assert "**" not in markdown_table([{"a": "x", "b": 1.0}, {"a": "y", "b": 1.0}])
    assert "**" not in markdown_table([{"a": "x", "b": 1.0}])
