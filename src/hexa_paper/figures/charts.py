"""Figures of studies: bars, curves, the attack grid and the study of Beta (Li et al., 2020, figures 2 to 5)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from hexa.reporting.style import COLOURS, INK, MARKERS, MUTED, drawing
from hexa.reporting.tables import format_number, mean_and_std, mean_std

Values = Sequence[float]
Lines = Mapping[str, Mapping[float, Values]]
"""The values of each arm by x."""
Cells = Mapping[tuple[float, float], Values]
"""Values by a pair of settings, such as (ε, η)."""
_DASHED = (0, (4, 3))


def bars(
    groups: Mapping[str, Mapping[str, Values]],
    *,
    y_label: str,
    title: str,
    remark: str,
) -> Figure:
    """One panel per group and one bar per arm: the mean, ± one standard deviation over seeds, one dot per seed.

    groups: for each arm its values, in percent; below the first line of an arm's name stands the rest of it. The axis
    does not begin at zero, which the dashed line at the first bar makes up for: arms are compared with it.
    """
    count = len(groups)
    most = max(len(group) for group in groups.values())
    needed = 1.2 + 0.86 * most
    width = max(3.4, needed)
    drawn = drawing(count, title, remark, width=width, height=3.9, share_y=count > 1)
    every = [values for group in groups.values() for values in group.values()]
    limits = _limits(every)
    with drawn as (figure, axes):
        for ax, (name, group) in zip(axes, groups.items(), strict=True):
            _bars(ax, group)
            ax.set_title(name, loc="left")
            ax.set_ylim(*limits)
        axes[0].set_ylabel(y_label)
    return figure


def _reach(values: Values) -> float:
    """The distance from the mean to the end of its error bar."""
    mean, std = mean_and_std(values)
    distances = [abs(value - mean) for value in values]
    return max(std or 0.0, *distances)


def _limits(every: Sequence[Values]) -> tuple[float, float]:
    """The ends of an axis of percent at which differences show; from zero only if values come near it."""
    ends = [(statistics.fmean(values), _reach(values)) for values in every]
    low = min(mean - reach for mean, reach in ends)
    high = max(mean + reach for mean, reach in ends)
    span = high - low
    margin = max(0.12 * span, 0.5)
    bottom = max(0.0, low - 3 * margin)
    top = high + 1.6 * margin
    return bottom, top


def _bars(ax: Axes, group: Mapping[str, Values]) -> None:
    places = range(len(group))
    means = [statistics.fmean(values) for values in group.values()]
    colours = [COLOURS[place % len(COLOURS)] for place in places]
    ax.bar(places, means, 0.66, color=colours, alpha=0.85)
    ax.axhline(means[0], color=MUTED, linewidth=0.9, linestyle=_DASHED)
    for place, mean, values in zip(places, means, group.values(), strict=True):
        if len(values) > 1:
            _, std = mean_and_std(values)
            ax.errorbar(place, mean, std, color=INK, capsize=4, linewidth=1.3)
            right = [place + 0.2] * len(values)
            ax.plot(right, values, "o", color=INK, markersize=2.6, alpha=0.7)
        top = mean + _reach(values)
        above: Any = {"xy": (place, top), "xytext": (0, 4), "textcoords": "offset points"}
        ax.annotate(mean_std(values), ha="center", fontsize=8, **above)
    ax.set_xticks(list(places), list(map(_broken, group)), fontsize=8)
    ax.tick_params(axis="x", length=0)
    ax.grid(True, axis="y")
    ax.margins(x=0.02)


def _broken(name: str) -> str:
    """A long name on lines that fit below a bar: its first line broken before plus signs and at blanks."""
    name, *rest = name.split("\n")
    lines = [""]
    for part in re.split(r"(?=[+ ])", name):
        longer = lines[-1] + part
        if lines[-1] and len(longer) > 10:
            lines.append("")
        lines[-1] += part
    first = [line.strip() for line in lines]
    return "\n".join([*first, *rest])


def curves(
    groups: Mapping[str, Lines],
    *,
    y_label: str,
    title: str,
    remark: str,
    doubling: bool = False,
) -> Figure:
    """One panel per group, named by its x axis; one line per arm, ± one standard deviation.

    groups: for each arm its values, one a seed, by x. doubling: log x axis.
    """
    count = len(groups)
    drawn = drawing(count, title, remark, width=4.4, height=3.5, share_y=count > 1)
    with drawn as (figure, axes):
        for ax, (x_label, group) in zip(axes, groups.items(), strict=True):
            for number, (name, points) in enumerate(group.items()):
                found = [mean_and_std(values) for values in points.values()]
                means = [mean for mean, _ in found]
                stds = [std or 0.0 for _, std in found]
                errors = stds if any(stds) else None
                colour = COLOURS[number % len(COLOURS)]
                marker = MARKERS[number % len(MARKERS)]
                look: Any = {"color": colour, "marker": marker, "label": name}
                ax.errorbar(list(points), means, errors, capsize=3, elinewidth=1.1, **look)
            ax.set_xlabel(x_label)
            ax.grid(True, axis="y")
            ax.margins(x=0.06, y=0.1)
            if doubling:  # each x a tick, equally far from its double
                places = sorted({x for points in group.values() for x in points})
                ax.set_xscale("log", base=2)
                ax.xaxis.set_minor_locator(NullLocator())
                labels = [format_number(place) for place in places]
                ax.set_xticks(places, labels)
        axes[0].set_ylabel(y_label)
        axes[0].legend(loc="best")
    return figure
