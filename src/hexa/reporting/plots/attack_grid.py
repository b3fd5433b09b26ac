"""Accuracy over radius ε and step η of the attack, with what one step makes of them (REFERENCE §8.7, figure 4)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from hexa.reporting.plots.style import INK, heading, note, panels, style
from hexa.reporting.tables import mean_std


def attack_grid(
    cells: Mapping[tuple[float, float], Sequence[float]],
    *,
    label: str,
    baseline: Sequence[float] = (),
    title: str = "",
    remark: str = "",
) -> Figure:
    """A cell for each (ε, η) in grey levels with mean ± std over its values, shaded by the mean, in percent.

    baseline: the values without an attack, told in the title of the panel.
    """
    radii, steps = sorted({epsilon for epsilon, _ in cells}), sorted({step for _, step in cells})
    means = np.full((len(steps), len(radii)), np.nan)
    for (epsilon, step), values in cells.items():
        means[steps.index(step), radii.index(epsilon)] = statistics.fmean(values)
    with style():
        figure, (ax,) = panels(1, width=2.2 + 1.35 * len(radii), height=2.0 + 0.95 * len(steps))
        shown = ax.imshow(means, cmap="cividis", origin="lower", aspect="auto")
        low, high = np.nanmin(means), np.nanmax(means)
        for (epsilon, step), values in cells.items():
            row, column = steps.index(step), radii.index(epsilon)
            dark = high == low or (means[row, column] - low) / (high - low) < 0.55
            ax.text(column, row, mean_std(values), ha="center", va="center", color="white" if dark else INK)
        ax.set_xticks(range(len(radii)), [f"{radius:g}" for radius in radii])
        ax.set_yticks(range(len(steps)), [f"{step:g}" for step in steps])
        ax.set_xlabel("radius ε (grey levels of 255)")
        ax.set_ylabel("step η (grey levels of 255)")
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        if baseline:
            ax.set_title(f"without an attack: {mean_std(baseline)}", loc="left", fontsize=10)
        figure.colorbar(shown, ax=ax, label=label)
        heading(figure, title)
        note(figure, remark)
    return figure
