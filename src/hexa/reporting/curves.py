"""The curves of journals as static charts, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hexa.config import is_number
from hexa.reporting.rendering import data_uri
from hexa.reporting.runs import MOST_QUANTITIES, Run
from hexa.reporting.style import COLOURS, MUTED, drawing, picture
from hexa.reporting.tables import format_number, told_apart
from hexa.runtime.parsing import read_resource

#: Percentage points that a y axis of percentages covers at least, so that 0.2 points do not look like a fall.
_LEAST = 5.0
#: Points of a drawn curve, at most; each is the mean of its neighbours.
_POINTS = 160
#: Width of a chart in inches.
_WIDTH = 5.2
#: Height of a chart in inches.
_HEIGHT = 3.0
#: Points of a curve up to which each gets a marker.
_MARKED = 12


class Quantity(NamedTuple):
    """The display of a group of journal keys (`loss/std`, `loss/adversarial` …: the group `loss`)."""

    title: str
    """The title of its chart."""
    about: str = ""
    """A line below the title."""
    unit: str = ""
    """The unit of the y axis."""
    factor: float = 1.0
    """Factor that the numbers of the journal are multiplied by: 100 for percent."""
    from_zero: bool = False
    """True if the y axis begins at zero."""


KNOWN = {
    name: Quantity(**fields)
    for name, fields in read_resource("hexa.reporting", "curves.yaml").items()
}
"""In the order of a report; a group that is not here follows under its own name."""


class Series(NamedTuple):
    """One curve."""

    name: str
    """Its name in the legend."""
    slot: int
    """Its place among the colours; from 8 on colours repeat, dashed."""
    x: NDArray[np.float64]
    """[N], ascending."""
    y: NDArray[np.float64]
    """[N]."""


class Chart(NamedTuple):
    """A drawn chart."""

    key: str
    """Its name in the page."""
    title: str
    """The heading."""
    about: str
    """A line below the heading."""
    image: str
    """The drawing, an SVG as a data URI."""
    legend: tuple[tuple[str, str, int], ...]
    """(name, last value, colour slot) of each curve."""


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Every chart. One run: one for each group, with a curve for each term. Several: one for each key.

    The k-NN monitor of several runs is also drawn over time. A curve of fewer than two points is left out.
    """
    present = dict.fromkeys(key for run in runs for key in run.quantities)
    keys = sorted(present, key=_order)[:MOST_QUANTITIES]
    drawn = _of_one(runs[0], keys) if len(runs) == 1 else _of_several(runs, keys)
    return [chart for chart in drawn if chart is not None]


def _of_one(
    run: Run,
    keys: Sequence[str],
) -> list[Chart | None]:
    # a term has one colour in all charts
    terms = list(dict.fromkeys(_term(key) for key in keys if "/" in key))
    groups: dict[str, list[Series]] = {}
    for key in keys:
        slot = terms.index(_term(key)) if "/" in key else 0
        curve = _series(run, key, _term(key), slot, "epoch")
        groups.setdefault(group(key), []).append(curve)
    return [_chart(name, _known(name), curves, "epoch") for name, curves in groups.items()]


def _of_several(
    runs: Sequence[Run],
    keys: Sequence[str],
) -> list[Chart | None]:
    names = labels(runs)
    made = []
    for key in keys:
        quantity = _known(group(key))
        title = f"{quantity.title}: {_term(key)}" if "/" in key else quantity.title
        for over in ("epoch", "minutes") if key == "knn" else ("epoch",):
            curves = [
                _series(run, key, name, slot, over)
                for slot, (run, name) in enumerate(zip(runs, names, strict=True))
            ]
            suffix = " over time" if over == "minutes" else ""
            titled = quantity._replace(title=title + suffix)
            made.append(_chart(key + suffix, titled, curves, over))
    return made


def labels(runs: Sequence[Run]) -> list[str]:
    """A distinct name for every run: the shortest end of its path that no other run has."""
    return told_apart([run.folder.resolve() for run in runs])


def group(key: str) -> str:
    """`loss/std` belongs to `loss`; the total, which is of another size, stands alone."""
    return "total loss" if key == "loss" else key.partition("/")[0]


def _order(key: str) -> tuple[int, str]:
    known = list(KNOWN)
    if group(key) in known:
        return known.index(group(key)), ""
    return len(known), group(key)


def _term(key: str) -> str:
    return key.partition("/")[2] or key


def _known(name: str) -> Quantity:
    """The display of a group."""
    return KNOWN.get(name, Quantity(name.replace("_", " ").capitalize()))


def _series(
    run: Run,
    key: str,
    name: str,
    slot: int,
    over: str,
) -> Series:
    """The curve of a key over epochs, or over minutes of training without monitors and checkpoints."""

    at = over
    unit = 1
    if over == "minutes":
        at = "seconds"
        unit = 60
    factor = _known(group(key)).factor
    points = [
        (line[at] / unit, line[key] * factor)
        for line in run.monitor + run.train + run.epochs
        if is_number(line.get(at)) and is_number(line.get(key))
    ]
    x, y = np.array(sorted(points), dtype=np.float64).reshape(-1, 2).T
    return Series(name, slot, x, y)


def _chart(
    key: str,
    quantity: Quantity,
    curves: Sequence[Series],
    over: str,
) -> Chart | None:
    """The chart of these curves; None if none has two points. over: what x counts."""
    curves = [one for one in curves if len(one.x) > 1]
    if not curves:
        return None
    percent = quantity.unit == "%"
    last = [f"{one.y[-1]:.1f} %" if percent else format_number(one.y[-1]) for one in curves]
    legend = tuple((one.name, value, one.slot) for one, value in zip(curves, last, strict=True))
    image = data_uri("image/svg+xml", _draw(curves, quantity, over))
    return Chart(key, quantity.title, quantity.about, image, legend)


def _draw(
    curves: Sequence[Series],
    quantity: Quantity,
    over: str,
) -> bytes:
    with drawing(1, width=_WIDTH, height=_HEIGHT) as (figure, (ax,)):
        for one in curves:
            x, y = condense(one)
            # a ninth curve repeats the first colour, so it is dashed
            round_, place = divmod(one.slot, len(COLOURS))
            style = (0, (4 + 2 * round_, 3)) if round_ else "-"
            marker = "o" if len(x) <= _MARKED else ""
            ax.plot(x, y, color=COLOURS[place], linestyle=style, marker=marker, markersize=4)
        _scale(ax, curves, quantity)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        ax.grid(True, axis="y")
        ax.set_xlabel(over, color=MUTED)
        ax.set_title(quantity.unit, color=MUTED, loc="left")
    return picture(figure, "svg")


def condense(series: Series) -> tuple[NDArray[np.float64], ...]:
    """At most `_POINTS` points (x, y), each the mean of its neighbours."""
    step = -(-len(series.x) // _POINTS)
    starts = np.arange(0, len(series.x), step)
    counts = np.diff([*starts, len(series.x)])
    return tuple(np.add.reduceat(values, starts) / counts for values in (series.x, series.y))


def _scale(
    ax: Axes,
    curves: Sequence[Series],
    quantity: Quantity,
) -> None:
    """Set the limits of the y axis: from zero, or for percentages wide enough."""
    if quantity.from_zero:
        ax.set_ylim(bottom=min(0.0, *(one.y.min() for one in curves)))
    elif quantity.unit == "%":
        low, high = ax.get_ylim()
        missing = max(0.0, _LEAST - (high - low))
        low = max(min(low - missing / 2, 100 - _LEAST), min(low, 0.0))
        ax.set_ylim(low, max(high, low + _LEAST))
