"""The Beta distributions of the kept share, and what each is worth (REFERENCE §8.7, figure 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hexa.reporting.plots.style import COLOURS, INK, MUTED, heading, note, panels, style
from hexa.reporting.tables import mean_std

Pair = tuple[float, float]


def density(alpha: float, beta: float, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """x^(α−1) · (1 − x)^(β−1) / B(α, β), for shares x strictly between 0 and 1."""
    log_of_b = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
    found: NDArray[np.float64] = np.exp((alpha - 1) * np.log(share) + (beta - 1) * np.log1p(-share) - log_of_b)
    return found


def beta_study(
    found: Mapping[Pair, Sequence[float]],
    *,
    label: str,
    baseline: Sequence[float] = (),
    title: str = "",
    remark: str = "",
) -> Figure:
    """Left the densities, right mean ± std of each in the same colour, and without mixing as a dashed line.

    found: percent, a value for each seed, by (α, β); empty sequences draw the density alone.
    """
    measured = {pair: values for pair, values in found.items() if values}
    with style():
        figure, axes = panels(2 if measured else 1, width=4.8, height=3.6)
        _densities(axes[0], list(found))
        if measured:
            _values(axes[1], found, label, baseline)
        heading(figure, title)
        note(figure, remark)
    return figure


def _densities(ax: Axes, pairs: Sequence[Pair]) -> None:
    share = np.linspace(0.002, 0.998, 400)
    dashes = ("-", (0, (5, 2)), (0, (2, 1.5)))
    for number, (alpha, beta) in enumerate(pairs):
        ax.plot(
            share,
            density(alpha, beta, share),
            color=COLOURS[number % len(COLOURS)],
            linestyle=dashes[number % len(dashes)],
            label=f"Beta({alpha:g}, {beta:g})",
        )
    ax.set_xlabel("share of itself that a mixed view keeps, λ")
    ax.set_ylabel("probability density")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, None)
    ax.grid(True, axis="y")
    ax.legend(loc="upper left", ncols=2, handlelength=1.8, columnspacing=1.0)
    ax.set_ylim(0, 1.45 * ax.get_ylim()[1])  # room for the legend


def _values(ax: Axes, found: Mapping[Pair, Sequence[float]], label: str, baseline: Sequence[float]) -> None:
    places: list[int] = []
    names: list[str] = []
    for number, ((alpha, beta), values) in enumerate(found.items()):
        if not values:
            continue
        place = len(places)
        places.append(place)
        names.append(f"({alpha:g}, {beta:g})")
        colour = COLOURS[number % len(COLOURS)]
        mean = float(np.mean(values))
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        ax.errorbar(place, mean, spread or None, color=colour, marker="o", capsize=4, markersize=7)
        ax.annotate(
            mean_std(values), (place, mean + spread), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8
        )
    if baseline:
        mean = float(np.mean(baseline))
        ax.axhline(mean, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
        ax.annotate(
            f"no mixing: {mean_std(baseline)}",
            (1, mean),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color=INK,
        )
    ax.set_xticks(places, names)
    ax.set_xlabel("(α, β)")
    ax.set_ylabel(label)
    ax.grid(True, axis="y")
    ax.margins(x=0.1, y=0.2)
