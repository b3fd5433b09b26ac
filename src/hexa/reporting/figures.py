"""Line and bar charts as small SVG texts: no dependency, readable on any background, and usable outside a report.

Colours are CSS variables (`--s0` … `--s7`, `--ink`, `--rule`) with fall-backs for a page that does not set them.
Every text is escaped; every number is finite or left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hexa.reporting.tables import format_number

WIDTH, HEIGHT = 380, 226
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 24, 36
COLOURS = ("#2463c4", "#cf4f1b", "#12855c", "#8347c0", "#a87400", "#c02d78", "#0c7f92", "#5d6875")
POINTS = 160
"""Points drawn of a longer series: the mean of each stretch, with its range behind."""


@dataclass(frozen=True)
class Series:
    """One curve: y over x, in any order and with gaps where y is not finite. slot: which colour it takes."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    slot: int = 0


@dataclass(frozen=True)
class Point:
    """A stretch of a series: the mean of its x and y, and the range of y."""

    x: float
    y: float
    low: float
    high: float


def condense(series: Series, limit: int = POINTS) -> list[Point]:
    """At most `limit` points, each the mean and range of as many neighbours; finite values only, ordered by x."""
    finite = sorted(
        (float(x), float(y)) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(x) and math.isfinite(y)
    )
    size = max(1, math.ceil(len(finite) / limit))
    points = []
    for start in range(0, len(finite), size):
        xs, ys = zip(*finite[start : start + size], strict=True)
        points.append(Point(math.fsum(xs) / len(xs), math.fsum(ys) / len(ys), min(ys), max(ys)))
    return points


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from at or below `low` to at or above `high`.

    >>> ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not high - low > 1e-300:
        margin = abs(low) * 0.05 or 0.5
        low, high = low - margin, high + margin
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def line_chart(
    series: Sequence[Series], *, title: str, x_label: str, y_label: str = "", from_zero: bool = False
) -> str:
    """An SVG of the curves over one pair of axes. Empty text if no series has a finite value.

    The element carries its points as `data-chart` (JSON), from which a script can show the values under a pointer;
    its `aria-label` says the last value of each. A series of one point is drawn as a dot.
    """
    drawn = [(one, points) for one in series if (points := condense(one))]
    if not drawn:
        return ""
    every = [point for _, points in drawn for point in points]
    x_ticks = _inner_ticks(min(p.x for p in every), max(p.x for p in every))
    x_range = (min(p.x for p in every), max(p.x for p in every))
    if x_range[0] == x_range[1]:
        x_range = (x_ticks[0], x_ticks[-1])
    low, high = min(p.low for p in every), max(p.high for p in every)
    if from_zero:
        low, high = min(0.0, low), high if low != high or high != 0 else 1.0
    y_ticks = ticks(low, high)
    frame = _Frame(x_range, (y_ticks[0], y_ticks[-1]))
    last = ", ".join(f"{one.name} {format_number(points[-1].y)}" for one, points in drawn)
    parts = [_axes(frame, x_ticks, y_ticks, x_label, y_label)]
    for one, points in drawn:
        parts.append(_curve(frame, one, points))
    parts.append('<line class="cursor" y1="{}" y2="{}" x1="0" x2="0" style="display:none"/>'.format(*frame.y_pixels))
    data = {
        "x": [*frame.x_range, *frame.x_pixels],
        "y": [*frame.y_range, *frame.y_pixels],
        "xLabel": x_label,
        "series": [
            {
                "name": one.name,
                "slot": one.slot % len(COLOURS),
                "x": [_round(p.x) for p in points],
                "y": [_round(p.y) for p in points],
            }
            for one, points in drawn
        ],
    }
    return _svg("".join(parts), f"{title} over {x_label}. Last values: {last}.", data)


def bar_chart(
    names: Sequence[str], values: Sequence[float], *, title: str, errors: Sequence[float] | None = None
) -> str:
    """An SVG of horizontal bars from zero with their values; `errors` are drawn as whiskers. Empty text for no bar."""
    errors = errors if errors is not None else [0.0] * len(values)
    bars = [bar for bar in zip(names, values, errors, strict=True) if math.isfinite(bar[1])]
    if not bars:
        return ""
    space = ticks(0.0, max(0.0, *(value + error for _, value, error in bars)))[-1]
    left, right, pitch = 130, WIDTH - 60, 26
    parts, said = [], []
    for number, (name, value, error) in enumerate(bars):
        y, width = 8 + number * pitch, max(0.0, value) / space * (right - left)
        shown = format_number(value) + (f" ± {format_number(error, 2)}" if error > 0 else "")
        said.append(f"{name} {shown}")
        colour = _colour(number)
        parts.append(
            f'<text class="tick" x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(_shorten(name, 20))}</text>'
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="18" rx="2" style="fill:{colour}"/>'
        )
        if error > 0:
            ends = [left + max(0.0, value + sign * error) / space * (right - left) for sign in (-1, 1)]
            parts.append(f'<line class="whisker" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y + 9}" y2="{y + 9}"/>')
            width = max(width, ends[1] - left)
        parts.append(f'<text class="value" x="{left + width + 6:.1f}" y="{y + 13}">{escape(shown)}</text>')
    return _svg("".join(parts), f"{title}: {', '.join(said)}.", None, height=len(bars) * pitch + 8)


@dataclass(frozen=True)
class _Frame:
    """The map from values to pixels of the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @property
    def x_pixels(self) -> tuple[int, int]:
        return (LEFT, WIDTH - RIGHT)

    @property
    def y_pixels(self) -> tuple[int, int]:
        return (HEIGHT - BOTTOM, TOP)

    def x(self, value: float) -> float:
        return _map(value, self.x_range, self.x_pixels)

    def y(self, value: float) -> float:
        return _map(value, self.y_range, self.y_pixels)


def _map(value: float, values: tuple[float, float], pixels: tuple[int, int]) -> float:
    return pixels[0] + (value - values[0]) / (values[1] - values[0]) * (pixels[1] - pixels[0])


def _inner_ticks(low: float, high: float) -> list[float]:
    """Ticks within the range; around it if it is a single value."""
    if low == high:
        return ticks(low, high)
    margin = (high - low) * 1e-3
    return [tick for tick in ticks(low, high) if low - margin <= tick <= high + margin] or [low, high]


def _axes(frame: _Frame, x_ticks: list[float], y_ticks: list[float], x_label: str, y_label: str) -> str:
    bottom, top = frame.y_pixels
    left, right = frame.x_pixels
    parts = []
    for tick in y_ticks:
        y = frame.y(tick)
        kind = "base" if tick == y_ticks[0] else "grid"
        parts.append(f'<line class="{kind}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>')
    for tick in x_ticks:
        x = min(max(frame.x(tick), left), right)
        anchor = "end" if x > right - 10 else "middle"
        parts.append(f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{_tick(tick)}</text>')
    middle = (left + right) / 2
    parts.append(f'<text class="label" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    if y_label:
        anchor = "end" if len(y_label) < 3 else "start"  # above the ticks, reading as they do
        parts.append(
            f'<text class="label" x="{left - 6}" y="{top - 11}" text-anchor="{anchor}">{escape(y_label)}</text>'
        )
    return "".join(parts)


def _curve(frame: _Frame, series: Series, points: list[Point]) -> str:
    colour = _colour(series.slot)
    # a ninth curve repeats the first colour, so it is dashed
    dashes = f";stroke-dasharray:{4 + 2 * (series.slot // len(COLOURS))} 3" if series.slot >= len(COLOURS) else ""
    name = f'data-series="{escape(series.name)}"'
    if len(points) == 1:
        x, y = frame.x(points[0].x), frame.y(points[0].y)
        return f'<circle {name} cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{colour}"/>'
    parts = []
    if any(point.high > point.low for point in points):
        upper = [f"{frame.x(p.x):.1f},{frame.y(p.high):.1f}" for p in points]
        lower = [f"{frame.x(p.x):.1f},{frame.y(p.low):.1f}" for p in reversed(points)]
        parts.append(f'<polygon class="range" points="{" ".join(upper + lower)}" style="fill:{colour}"/>')
    line = " ".join(f"{frame.x(p.x):.1f},{frame.y(p.y):.1f}" for p in points)
    parts.append(f'<polyline class="curve" {name} points="{line}" style="stroke:{colour}{dashes}"/>')
    if len(points) <= 12:
        parts += [
            f'<circle cx="{frame.x(p.x):.1f}" cy="{frame.y(p.y):.1f}" r="2.2" style="fill:{colour}"/>' for p in points
        ]
    return "".join(parts)


_STYLE = "".join(
    f".chart {rule}"
    for rule in (
        "text{font:11px system-ui,sans-serif;fill:var(--muted,#5d6875)}",
        ".value{fill:var(--ink,#1b1f24)}",
        ".grid{stroke:var(--rule,#e3e6ea)}",
        ".base{stroke:var(--muted,#5d6875)}",
        ".whisker{stroke:var(--ink,#1b1f24);stroke-width:1.5}",
        ".cursor{stroke:var(--muted,#5d6875);stroke-dasharray:2 2}",
        ".curve{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}",
        ".range{opacity:.16}",
    )
)
# inline SVG shares the page's style sheet, so every rule is scoped


def _svg(body: str, description: str, data: dict[str, Any] | None, height: int = HEIGHT) -> str:
    carried = f' data-chart="{escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))}"' if data else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(description)}"{carried}><style>{_STYLE}</style>{body}</svg>'
    )


def _colour(slot: int) -> str:
    slot %= len(COLOURS)
    return f"var(--s{slot},{COLOURS[slot]})"


def _tick(value: float) -> str:
    if abs(value) >= 10_000:
        for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return format_number(value / size) + unit
    return format_number(value)


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
