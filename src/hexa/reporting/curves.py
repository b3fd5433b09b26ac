"""Which curves of a journal become charts: every numeric series, the known ones with a title and a unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hexa.reporting.figures import Series, line_chart
from hexa.reporting.runs import MOST_QUANTITIES, Record, Run, is_number
from hexa.reporting.tables import NOTHING, format_number


@dataclass(frozen=True)
class Quantity:
    """How a group of journal keys (`loss/std`, `loss/adversarial` …: the group `loss`) is shown."""

    title: str
    about: str = ""
    unit: str = ""
    factor: float = 1.0
    from_zero: bool = False


KNOWN = {
    "knn": Quantity("k-NN monitor", "of the frozen features, on held-out images", "%"),
    "loss": Quantity("Loss", "of each term, before its weight"),
    "accuracy": Quantity("Accuracy of pseudo-labels", "how often the pseudo-label is the most likely", "%", 100.0),
    "perturbation": Quantity("Mean |δ|", "how far views are moved", "grey levels", from_zero=True),
    "lambda": Quantity("λ", "the share of itself that a mixed view keeps"),
    "zero_gradient": Quantity("Zero gradients", "pixels that an attack cannot move", "%", 100.0, from_zero=True),
    "clusters": Quantity("Clusters", "shares: non-empty, entropy of ln K, mutual information (nmi)", from_zero=True),
    "total loss": Quantity("Objective", "the weighted sum that is minimised"),
    "learning_rate": Quantity("Learning rate", "of the optimizer", from_zero=True),
    "feature_std": Quantity("Spread of the embedding", "1 is even, 0 is collapse", from_zero=True),
    "effective_rank": Quantity("Effective rank", "directions that the embedding uses", from_zero=True),
    "images_per_second": Quantity("Throughput", "views, steps and logging", "images/s", from_zero=True),
    "data_wait": Quantity("Waiting for data", "share of the time", "%", 100.0, from_zero=True),
}
"""In the order of a report; a group that is not here follows under its own name."""


@dataclass(frozen=True)
class Chart:
    """A drawn chart with its legend (name, last value, colour slot) and a short table of its values."""

    key: str
    title: str
    about: str
    svg: str
    legend: tuple[tuple[str, str, int], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Every chart: of one run a chart a group with a curve a term; of several, a chart a key with a curve a run."""
    names = labels(runs)
    keys = sorted(dict.fromkeys(key for run in runs for key in run.quantities), key=_order)[:MOST_QUANTITIES]
    terms = list(dict.fromkeys(_term(key) for key in keys if "/" in key))
    slots = {key: terms.index(_term(key)) for key in keys if "/" in key}  # a term has one colour in all charts
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(group(key) if len(runs) == 1 else key, []).append(key)
    made = []
    for title, members in groups.items():
        if len(runs) == 1:
            series = [_series(runs[0], key, _term(key), slots.get(key, 0)) for key in members]
        else:
            series = [_series(run, members[0], names[slot], slot) for slot, run in enumerate(runs)]
        made.append(_chart(title, members[0], series, several=len(runs) > 1))
    if len(runs) > 1 and "knn" in keys:
        series = [_series(run, "knn", names[slot], slot, "minutes") for slot, run in enumerate(runs)]
        by_time = _chart("knn over time", "knn", series, several=True, x_label="minutes")
        made.insert(1, by_time)
    return [chart for chart in made if chart.svg]


def labels(runs: Sequence[Run]) -> list[str]:
    """A distinct name for every run: its folder's name, with as much of the path before it as tells them apart."""
    paths = [run.folder.resolve().parts for run in runs]
    for depth in range(1, max((len(path) for path in paths), default=0) + 1):
        names = ["/".join(path[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.name} ({number})" for number, run in enumerate(runs, start=1)]


def group(key: str) -> str:
    """`loss/std` belongs to `loss`; the total, whose size is another, stands alone."""
    return "total loss" if key == "loss" else key.split("/", 1)[0]


def _order(key: str) -> tuple[int, str]:
    known = list(KNOWN)
    return (known.index(group(key)), "") if group(key) in known else (len(known), group(key))


def _epoch(line: Record) -> float:
    return float(line["epoch"] if is_number(line.get("epoch")) else line["step"])


def _term(key: str) -> str:
    return key.split("/", 1)[1] if "/" in key else key


def _series(run: Run, key: str, name: str, slot: int, over: str = "epoch") -> Series:
    factor = KNOWN.get(group(key), Quantity("")).factor
    lines = [line for line in run.monitor + run.train + run.epochs if is_number(line.get(key))]
    if over == "minutes":
        lines = [line for line in lines if is_number(line.get("seconds"))]
        x = [float(line["seconds"]) / 60 for line in lines]
    else:
        x = [_epoch(line) for line in lines]
    return Series(name, x, [float(line[key]) * factor for line in lines], slot)


def _chart(key: str, member: str, series: Iterable[Series], several: bool, x_label: str = "epoch") -> Chart:
    series = [one for one in series if one.x]
    known = KNOWN.get(group(member), Quantity(group(member).replace("_", " ").capitalize()))
    title = known.title + (f": {_term(member)}" if several and "/" in member else "")
    title += " by time" if x_label != "epoch" else ""
    svg = line_chart(series, title=title, x_label=x_label, y_label=known.unit, from_zero=known.from_zero)
    last = tuple((one.name, _with_unit(one.y[-1], known.unit), one.slot) for one in series)
    header = (x_label, *(one.name for one in series))
    return Chart(key, title, known.about, svg, last, header, tuple(_sample(series)))


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.1f} %" if unit == "%" else format_number(value)  # longer units stand at the axis


def _sample(series: Sequence[Series], count: int = 8) -> list[tuple[str, ...]]:
    """Rows of the value table: evenly spaced places of the longest series, and each curve's nearest value there."""
    if not series:
        return []
    longest = max(series, key=lambda one: len(one.x))
    places = sorted({round(i * (len(longest.x) - 1) / max(1, count - 1)) for i in range(count)})
    rows = []
    for place in places:
        x = longest.x[place]
        rows.append((format_number(x), *(_value_at(one, x) for one in series)))
    return rows


def _value_at(series: Series, x: float) -> str:
    if not min(series.x) <= x <= max(series.x):
        return NOTHING
    nearest = min(range(len(series.x)), key=lambda i: abs(series.x[i] - x))
    return format_number(series.y[nearest], 4)
