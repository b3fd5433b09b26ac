"""Charts: what is drawn is what was given."""

from __future__ import annotations

import itertools
import json
import math
import re
from html import unescape
from xml.etree import ElementTree

import pytest

from hexa.reporting.figures import POINTS, Series, bar_chart, condense, line_chart, ticks

SVG = "{http://www.w3.org/2000/svg}"


def tree(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 97), (4.2, 7.9), (1e-6, 3e-5), (-3, 2), (5, 5), (0, 0), (99.99, 100), (0, 1e7)]
)
def test_ticks_are_round_and_enclose(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 8
    steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in itertools.pairwise(found)}
    assert steps == {1.0}
    mantissa = (found[1] - found[0]) / 10 ** math.floor(math.log10(found[1] - found[0]) + 1e-9)
    assert min(abs(mantissa - nice) for nice in (1, 2, 5)) < 1e-6


def test_condensing_keeps_mean_and_range() -> None:
    ys = [math.sin(i / 7) + (i % 3) for i in range(1000)]
    points = condense(Series("a", list(range(1000)), ys), limit=100)
    assert len(points) == 100
    assert points[3].x == pytest.approx(34.5)
    assert points[3].y == pytest.approx(sum(ys[30:40]) / 10)
    assert (points[3].low, points[3].high) == (min(ys[30:40]), max(ys[30:40]))
    assert sum(point.y for point in points) / 100 == pytest.approx(sum(ys) / 1000)


def test_values_that_are_not_finite_are_gaps() -> None:
    points = condense(Series("a", [0, 1, 2, 3], [1.0, math.nan, math.inf, 2.0]))
    assert [(p.x, p.y) for p in points] == [(0, 1.0), (3, 2.0)]


def test_a_curve_goes_through_its_points() -> None:
    """The pixels of the polyline, read back with the positions of the ticks' labels."""
    xs, ys = [0.0, 5.0, 10.0], [20.0, 60.0, 40.0]
    svg = tree(line_chart([Series("a", xs, ys)], title="t", x_label="epoch"))
    labels = {(t.get("text-anchor"), t.text): t for t in svg.iter(f"{SVG}text")}
    x_of = {
        text: float(t.get("x", "")) for (anchor, text), t in labels.items() if anchor == "middle" and text in ("0", "5")
    }
    y_of = {
        text: float(t.get("y", "")) - 4
        for (anchor, text), t in labels.items()
        if anchor == "end" and text in ("20", "60")
    }
    line = next(svg.iter(f"{SVG}polyline")).get("points", "")
    drawn = [tuple(map(float, pair.split(","))) for pair in line.split()]
    per_x, per_y = (x_of["5"] - x_of["0"]) / 5, (y_of["60"] - y_of["20"]) / 40
    for (px, py), x, y in zip(drawn, xs, ys, strict=True):
        assert px == pytest.approx(x_of["0"] + x * per_x, abs=0.2)
        assert py == pytest.approx(y_of["20"] + (y - 20) * per_y, abs=0.2)


def test_the_data_for_the_pointer_are_those_drawn() -> None:
    series = [Series("std", [0, 1], [3.0, 2.0], 0), Series("odd \"<&>'", [0, 2], [1.0, 0.5], 9)]
    svg = tree(line_chart(series, title="Loss", x_label="epoch"))
    data = json.loads(svg.get("data-chart", ""))
    assert [one["name"] for one in data["series"]] == ["std", "odd \"<&>'"]
    assert data["series"][1]["x"] == [0, 2]
    assert data["series"][1]["y"] == [1.0, 0.5]
    assert data["series"][1]["slot"] == 1
    assert data["x"][:2] == [0, 2]
    assert "std 2" in svg.get("aria-label", "")
    assert [line.get("data-series") for line in svg.iter(f"{SVG}polyline")] == ["std", "odd \"<&>'"]
    assert "dasharray" in (list(svg.iter(f"{SVG}polyline"))[1].get("style") or "")


def test_one_point_is_a_dot_and_nothing_is_nothing() -> None:
    svg = tree(line_chart([Series("a", [1.0], [2.0])], title="t", x_label="epoch"))
    assert len(list(svg.iter(f"{SVG}circle"))) == 1
    assert line_chart([Series("a", [1.0], [math.nan]), Series("b", [], [])], title="t", x_label="epoch") == ""


def test_long_series_stay_small() -> None:
    count = 200_000
    svg = line_chart([Series("a", range(count), [i % 17 for i in range(count)])], title="t", x_label="step")
    assert len(svg) < 15_000
    assert next(tree(svg).iter(f"{SVG}polyline")).get("points", "").count(",") <= POINTS
    assert len(list(tree(svg).iter(f"{SVG}polygon"))) == 1


def test_zero_is_in_a_chart_from_zero() -> None:
    svg = line_chart([Series("a", [0, 1], [5.0, 6.0])], title="t", x_label="epoch", from_zero=True)
    assert ">0</text>" in svg
    flat = line_chart([Series("a", [0, 1], [0.0, 0.0])], title="t", x_label="epoch", from_zero=True)
    assert ">-0.5</text>" not in flat


def test_bars_are_as_long_as_their_values() -> None:
    svg = tree(bar_chart(["Std", "Std+<Adv>", "none"], [50.0, 75.0, math.nan], title="top-1", errors=[0, 1.5, 0]))
    widths = [float(rect.get("width", "")) for rect in svg.iter(f"{SVG}rect")]
    assert len(widths) == 2
    assert widths[1] / widths[0] == pytest.approx(1.5, abs=0.01)
    texts = [t.text for t in svg.iter(f"{SVG}text")]
    assert texts == ["Std", "50", "Std+<Adv>", "75 ± 1.5"]
    assert bar_chart([], [], title="t") == ""


def test_every_rule_is_scoped() -> None:
    """Inline SVG shares the page's style sheet: a rule without the chart's class would dress the page too."""
    svg = line_chart([Series("a", [0, 1], [0, 1])], title="t", x_label="epoch")
    rules = re.findall(r"([^{}]+)\{", unescape(re.search(r"<style>(.*?)</style>", svg).group(1)))  # type: ignore[union-attr]
    assert all(rule.startswith(".chart ") for rule in rules)
