"""Curves with error bars: accuracy over epochs, time or labels (REFERENCE §8.7, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hexa.reporting.plots.style import COLOURS, MARKERS, heading, note, panels, style
from hexa.reporting.tables import format_number


@dataclass(frozen=True)
class Curve:
    """One arm: several values (a seed each) at every x."""

    name: str
    x: Sequence[float]
    values: Sequence[Sequence[float]]

    @property
    def means(self) -> list[float]:
        return [float(np.mean(values)) for values in self.values]

    @property
    def stds(self) -> list[float]:
        """Sample standard deviations (n − 1); 0 for a single seed."""
        return [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in self.values]


def curves(
    groups: Mapping[str, Sequence[Curve]], *, y_label: str, title: str = "", remark: str = "", doubling: bool = False
) -> Figure:
    """A panel a group, named by its x axis; a line an arm, ± one standard deviation. doubling: a logarithmic x axis."""
    with style():
        figure, axes = panels(len(groups), width=4.4, height=3.5, share_y=len(groups) > 1)
        for place, (ax, (x_label, group)) in enumerate(zip(axes, groups.items(), strict=True)):
            _panel(ax, group)
            ax.set_xlabel(x_label)
            if doubling:
                _double(ax, group)
            if place == 0:
                ax.set_ylabel(y_label)
                ax.legend(loc="best")
        heading(figure, title)
        note(figure, remark)
    return figure


def _panel(ax: Axes, group: Sequence[Curve]) -> None:
    for number, curve in enumerate(group):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        errors = curve.stds if any(len(values) > 1 for values in curve.values) else None
        ax.errorbar(
            curve.x, curve.means, errors, color=colour, marker=marker, capsize=3, elinewidth=1.1, label=curve.name
        )
    ax.grid(True, axis="y")
    ax.margins(x=0.06, y=0.1)


def _double(ax: Axes, group: Sequence[Curve]) -> None:
    """Each x a tick, equally far from its double."""
    places = sorted({x for curve in group for x in curve.x})
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(places))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(places, [format_number(place) for place in places])
