"""Bars with error bars and every seed as a dot: the ablation, and arms of any table (REFERENCE §8.7, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hexa.reporting.plots.style import COLOURS, INK, MUTED, heading, limits, note, panels, style
from hexa.reporting.tables import mean_std


@dataclass(frozen=True)
class Bar:
    """One arm: a value for each seed, in percent. remark: a few words below its name."""

    name: str
    values: Sequence[float]
    remark: str = ""

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def std(self) -> float:
        """The sample standard deviation (n − 1); 0 for a single seed."""
        spread = sum((value - self.mean) ** 2 for value in self.values)
        return (spread / (len(self.values) - 1)) ** 0.5 if len(self.values) > 1 else 0.0


def bars(
    groups: Mapping[str, Sequence[Bar]], *, y_label: str, title: str = "", remark: str = "", share_y: bool = True
) -> Figure:
    """A panel a group, a bar an arm: the mean, ± one standard deviation over seeds, a dot a seed.

    The axis does not begin at zero, which the dashed line at the first bar makes up for: arms are compared with it.
    """
    most = max(len(group) for group in groups.values())
    with style():
        figure, axes = panels(
            len(groups), width=max(3.4, 1.2 + 0.86 * most), height=3.9, share_y=share_y and len(groups) > 1
        )
        for place, (ax, (name, group)) in enumerate(zip(axes, groups.items(), strict=True)):
            _panel(ax, group)
            ax.set_title(name, loc="left")
            if place == 0 or not share_y:
                ax.set_ylabel(y_label)
        drawn = [bar for group in groups.values() for bar in group] if share_y else []
        for ax, group in zip(axes, groups.values(), strict=True):
            shown = drawn or list(group)
            ax.set_ylim(*limits([bar.mean for bar in shown], [_reach(bar) for bar in shown]))
        heading(figure, title)
        note(figure, remark)
    return figure


def _reach(bar: Bar) -> float:
    return max(bar.std, *(abs(value - bar.mean) for value in bar.values))


def _panel(ax: Axes, group: Sequence[Bar]) -> None:
    places = range(len(group))
    ax.bar(places, [bar.mean for bar in group], 0.66, color=[COLOURS[n % len(COLOURS)] for n in places], alpha=0.85)
    ax.axhline(group[0].mean, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    for place, bar in enumerate(group):
        if len(bar.values) > 1:
            ax.errorbar(place, bar.mean, bar.std, color=INK, capsize=4, linewidth=1.3)
            ax.plot([place + 0.2] * len(bar.values), bar.values, "o", color=INK, markersize=2.6, alpha=0.7)
        ax.annotate(
            mean_std(bar.values),
            (place, bar.mean + _reach(bar)),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    labels = [_broken(bar.name) + (f"\n({bar.remark})" if bar.remark else "") for bar in group]
    ax.set_xticks(list(places), labels, fontsize=8)
    ax.tick_params(axis="x", length=0)
    ax.grid(True, axis="y")
    ax.margins(x=0.02)


def _broken(name: str) -> str:
    """A long name on lines that fit below a bar: broken at plus signs and blanks."""
    lines, line = [], ""
    for part in name.replace("+", "\0+").replace(" ", "\0 ").split("\0"):
        if line and len(line + part) > 10:
            lines.append(line.strip())
            line = ""
        line += part
    return "\n".join([*lines, line.strip()])
