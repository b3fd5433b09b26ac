"""The curves of journals as charts: which there are, drawn by matplotlib in the colours of the page."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator
from numpy.typing import NDArray

from hexa.reporting.runs import MOST_QUANTITIES, Record, Run, is_number
from hexa.reporting.style import COLOURS, INK, MUTED, RULE, style
from hexa.reporting.tables import NOTHING, Table, format_number, told_apart

#: Percentage points that a y axis of percentages covers at least, so that 0.2 points do not look like a fall.
_LEAST = 5.0
POINTS = 160
"""Points drawn of a longer curve: the mean of each stretch, on its range."""
WIDTH = 380
HEIGHT = 226
#: Rows of a table of values: evenly spaced places of the longest series, and each curve's nearest value there.
_ROWS = 8
_IN_PAGE = {colour: f"var(--s{slot})" for slot, colour in enumerate(COLOURS)}
_IN_PAGE |= {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)"}


class Quantity(NamedTuple):
    """How a group of journal keys (`loss/std`, `loss/adversarial` …: the group `loss`) is shown."""

    title: str
    """The title of its chart."""
    about: str = ""
    """A line below the title."""
    unit: str = ""
    """The unit of the y axis."""
    factor: float = 1.0
    """Factor that the numbers of the journal are multiplied by: 100 for percent."""
    from_zero: bool = False
    """Whether the y axis begins at zero."""


KNOWN = {
    "knn": Quantity("k-NN monitor", "of the frozen features, on held-out images", "%"),
    "loss": Quantity("Loss", "of each term, before its weight"),
    "accuracy": Quantity(
        "Accuracy of pseudo-labels", "how often the pseudo-label is the most likely", "%", 100.0
    ),
    "perturbation": Quantity("Mean |δ|", "how far views are moved", "grey levels", from_zero=True),
    "lambda": Quantity("λ", "area kept by the original image"),
    "zero_gradient": Quantity(
        "Zero gradients", "pixels that an attack cannot move", "%", 100.0, from_zero=True
    ),
    "clusters": Quantity(
        "Clusters", "shares: non-empty, entropy of ln K, mutual information (nmi)", from_zero=True
    ),
    "total loss": Quantity("Objective", "the weighted sum that is minimised"),
    "learning_rate": Quantity("Learning rate", "of the optimizer", from_zero=True),
    "feature_std": Quantity("Spread of the embedding", "1 is even, 0 is collapse", from_zero=True),
    "effective_rank": Quantity(
        "Effective rank", "directions that the embedding uses", from_zero=True
    ),
    "images_per_second": Quantity(
        "Throughput", "views, steps and logging", "images/s", from_zero=True
    ),
    "data_wait": Quantity("Waiting for data", "share of the time", "%", 100.0, from_zero=True),
}
"""In the order of a report; a group that is not here follows under its own name."""


#: What the monitor's score of several runs is drawn over, and what that is called. Minutes are of training, over all
#: sessions of a run, without what monitors and checkpoints take.
AXES = {"epoch": "epoch", "step": "steps", "minutes": "time"}


class Series(NamedTuple):
    """One curve."""

    name: str
    """Its name in the legend."""
    slot: int
    """Which colour it takes; from 8 on colours repeat, dashed."""
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
    svg: str
    """The drawing."""
    legend: tuple[tuple[str, str, int], ...]
    """(name, last value, colour slot) of each curve."""
    values: Table
    """Some of the values."""


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Every chart: of one run one per group, with a curve per term; of several, one per key, with a curve per run.

    A curve of fewer than two points is not drawn.
    """
    several = len(runs) > 1
    names = labels(runs)
    keys = sorted(dict.fromkeys(key for run in runs for key in run.quantities), key=_order)[
        :MOST_QUANTITIES
    ]
    # a term has one colour in all charts
    slots = {
        term: slot
        for slot, term in enumerate(dict.fromkeys(_term(key) for key in keys if "/" in key))
    }
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(key if several else group(key), []).append(key)
    made = []
    for name, members in groups.items():
        for over in AXES if several and name == "knn" else ("epoch",):
            if several:
                curves = [
                    _series(run, name, names[slot], slot, over) for slot, run in enumerate(runs)
                ]
            else:
                curves = [
                    _series(runs[0], key, _term(key), slots[_term(key)] if "/" in key else 0)
                    for key in members
                ]
            if drawable := [one for one in curves if len(one.x) > 1]:
                made.append(_chart(name, members[0], drawable, several, over))
    return made


def labels(runs: Sequence[Run]) -> list[str]:
    """A distinct name for every run: its folder's name, with as much of the path before it as tells them apart."""
    return told_apart([run.folder.resolve() for run in runs])


def group(key: str) -> str:
    """`loss/std` belongs to `loss`; the total, which is of another size, stands alone."""
    return "total loss" if key == "loss" else key.split("/", 1)[0]


def _order(key: str) -> tuple[int, str]:
    known = list(KNOWN)
    return (known.index(group(key)), "") if group(key) in known else (len(known), group(key))


def _term(key: str) -> str:
    return key.split("/", 1)[1] if "/" in key else key


def _series(run: Run, key: str, name: str, slot: int, over: str = "epoch") -> Series:
    def place(line: Record) -> float | None:
        if over == "minutes":
            return line["seconds"] / 60 if is_number(line.get("seconds")) else None
        at = line.get(over)
        return at if is_number(at) else line["step"]

    factor = KNOWN.get(group(key), Quantity("")).factor
    lines = [line for line in run.monitor + run.train + run.epochs if is_number(line.get(key))]
    points = sorted((at, line[key] * factor) for line in lines if (at := place(line)) is not None)
    return Series(name, slot, *np.array(points, dtype=np.float64).reshape(-1, 2).T)


def _chart(name: str, key: str, series: Sequence[Series], several: bool, over: str) -> Chart:
    known = KNOWN.get(group(key), Quantity(group(key).replace("_", " ").capitalize()))
    title = known.title + (f": {_term(key)}" if several and "/" in key else "")
    if over != "epoch":
        title = f"{title} by {AXES[over]}"
        name = f"{name} over {AXES[over]}"
    return drawn(name, known._replace(title=title), series, over)


def drawn(key: str, known: Quantity, series: Sequence[Series], over: str) -> Chart:
    """The chart of these curves; `over` is what x counts."""
    last = [
        f"{one.y[-1]:.1f} %" if known.unit == "%" else format_number(one.y[-1]) for one in series
    ]
    legend = tuple((one.name, value, one.slot) for one, value in zip(series, last, strict=True))
    said = ", ".join(f"{curve} {value}" for curve, value, _ in legend)
    label = escape(f"{known.title} over {over}. Last values: {said}.")
    svg = line_chart(series, key, over, known.unit, known.from_zero).replace(
        "<svg ", f'<svg aria-label="{label}" ', 1
    )
    longest = max((one.x for one in series), key=len)
    places = longest[sorted({round(part) for part in np.linspace(0, len(longest) - 1, _ROWS)})]
    rows = tuple((format_number(x), *(_value_at(one, x) for one in series)) for x in places)
    return Chart(
        key,
        known.title,
        known.about,
        svg,
        legend,
        Table((over, *(one.name for one in series)), rows),
    )


def _value_at(series: Series, x: float) -> str:
    if not series.x[0] <= x <= series.x[-1]:
        return NOTHING
    return format_number(float(series.y[np.abs(series.x - x).argmin()]), 4)


# -- drawing ----------------------------------------------------------------------------------------------------------


def line_chart(
    series: Sequence[Series], key: str, x_label: str, y_label: str = "", from_zero: bool = False
) -> str:
    """An SVG of the curves over one pair of axes, to stand in a page that defines its colours (--s0 … --s7, --ink …).

    A curve is a `g.curve` with its name as `data-series` and its colour as `data-slot`; its points are those of the
    path in it. `data-axes` maps pixels to values: [x0, x1, left, right, y0, y1, bottom, top].
    """
    with style(), rc_context({"svg.hashsalt": key, "path.simplify": False, "font.size": 11.0}):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)  # a pixel of the page is a point
        ax = figure.add_axes((0.11, 0.17, 0.86, 0.7))
        for number, one in enumerate(series):
            x, y, low, high = condense(one)
            colour = COLOURS[one.slot % len(COLOURS)]
            # a ninth curve repeats the first colour, so it is dashed
            dashes = (
                (0, (4 + 2 * (one.slot // len(COLOURS)), 3)) if one.slot >= len(COLOURS) else "-"
            )
            if (high > low).any():
                outline = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
                ax.fill(
                    *outline,
                    color=colour,
                    alpha=0.16,
                    linewidth=0,
                    gid=f"range {number}",
                    clip_on=False,
                )
            marker = "o" if len(x) <= 12 else ""
            ax.plot(
                x,
                y,
                color=colour,
                ls=dashes,
                marker=marker,
                markersize=4,
                clip_on=False,
                gid=f"curve {number}",
            )
        _axes(ax, series, x_label, y_label, from_zero)
        frame = [*ax.get_xlim(), *ax.bbox.intervalx, *ax.get_ylim(), *(HEIGHT - ax.bbox.intervaly)]
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    return _for_a_page(file.getvalue(), series, x_label, [float(f"{value:.6g}") for value in frame])


def condense(series: Series, limit: int = POINTS) -> tuple[NDArray[np.float64], ...]:
    """At most `limit` points (x, y, low, high), each the mean of x and y, and the range of y, of its neighbours."""
    starts = np.arange(0, len(series.x), -(-len(series.x) // limit))
    x, y = (np.add.reduceat(v, starts) / np.diff([*starts, len(v)]) for v in (series.x, series.y))
    return x, y, np.minimum.reduceat(series.y, starts), np.maximum.reduceat(series.y, starts)


def _axes(ax: Axes, series: Sequence[Series], x_label: str, y_label: str, from_zero: bool) -> None:
    ax.margins(x=0 if any(one.x[0] < one.x[-1] for one in series) else 0.05, y=0.06)
    if from_zero:
        ax.set_ylim(bottom=min(0.0, *(one.y.min() for one in series)))
    elif y_label == "%":
        low, high = ax.get_ylim()
        missing = max(0.0, _LEAST - (high - low))
        low = max(min(low - missing / 2, 100 - _LEAST), min(low, 0.0))
        ax.set_ylim(low, max(high, low + _LEAST))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(_Ticks())
    ax.tick_params(left=False, bottom=False, labelcolor=MUTED, labelsize=11)
    ax.spines["left"].set_visible(False)
    ax.grid(True, axis="y")
    ax.set_xlabel(x_label, color=MUTED, fontsize=11)
    ax.set_title(y_label, color=MUTED, fontsize=11, loc="left", x=-0.1)


class _Ticks(Formatter):
    """Numbers at ticks in as few digits as tell them apart."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        return _tick(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        texts = [_tick(value) for value in values]
        places = np.unique(values)
        if len(set(texts)) == len(places):
            return texts
        step = float(np.diff(places).min())
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return [f"{value:,.{decimals}f}" for value in values]


def _tick(value: float) -> str:
    return f"{format_number(value / 1000)}k" if 1e4 <= abs(value) < 1e7 else format_number(value)


def _for_a_page(svg: str, series: Sequence[Series], x_label: str, frame: Sequence[float]) -> str:
    """What matplotlib drew without what is for a file of its own: header, metadata, style sheet, names of groups."""
    body = svg[svg.index('<g id="figure_1">') : svg.rindex("</svg>")]
    for number, one in enumerate(series):
        name = escape(one.name)
        body = body.replace(f'<g id="range {number}">', f'<g data-series="{name}">')
        curve = f'<g class="curve" data-series="{name}" data-slot="{one.slot % len(COLOURS)}">'
        body = body.replace(f'<g id="curve {number}">', curve)
    unwanted = r'(?<=<g) id="[\w.]+_\d+"| clip-path="[^"]*"| transform="rotate\(-0 [^"]*"|<defs>\s*<clipPath.*</defs>'
    body = re.sub(unwanted, "", body, flags=re.DOTALL)
    body = re.sub(
        r'font-family: [^;"]*', "font-family: inherit", body.replace("xlink:href", "href")
    )
    for colour, variable in _IN_PAGE.items():
        body = body.replace(colour, variable)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return f'{head} data-x="{x_label}" data-axes="{json.dumps(frame)}">{body}</svg>'
