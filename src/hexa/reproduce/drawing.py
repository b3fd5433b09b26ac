"""The figures of a study: which of `hexa.reporting.plots` shows it, and from which of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hexa.reporting import plots
from hexa.reporting.figure import short_name
from hexa.reporting.plots import Bar, Curve
from hexa.reporting.plots.style import SUFFIXES
from hexa.reproduce.collecting import EPOCHS, TIME, Row, columns_of
from hexa.reproduce.design import Study
from hexa.reproduce.methods import METHODS
from hexa.reproduce.plan import Costs, seconds_per_image
from hexa.reproduce.studies import GRID, GRID_NOTE

Runs = Sequence[Mapping[str, Any]]
#: Below the study's.
FOLDER = "figures"


def draw(study: Study, rows: Sequence[Row], runs: Runs, costs: Costs | None, out: Path, data: str) -> list[Path]:
    """Write every figure of a study into a folder below `out`, as PNG and as SVG."""
    written = []
    for name, figure in figures(study, rows, runs, costs, data).items():
        written += [plots.save(figure, out / FOLDER / f"{name}{suffix}") for suffix in SUFFIXES]
    return written


def figures(study: Study, rows: Sequence[Row], runs: Runs, costs: Costs | None, data: str) -> dict[str, Figure]:
    """Every figure of a study by its file's name. runs: what its final jobs stored."""
    columns = columns_of(rows)  # none if every run diverged, so nothing is drawn
    title = f"{study.name}: {METHODS[study.method].title} on {short_name(data)}"
    if study.name in ("low-shot-curve", "table2"):
        return {study.name: _low_shot(rows, columns, title)} if columns else {}
    drawn = {}
    if study.name == "learning-curves":
        drawn = _probe_curves(study, runs, title)
    for column in columns:
        name = f"{study.name}-{_slug(column)}"
        if study.name == "attack-grid":
            drawn[name] = _grid(rows, column, title)
        elif study.name == "beta-study":
            drawn[name] = _beta(rows, column, title)
        elif len(study.lengths) > 1:
            drawn[name] = _curves(study, rows, column, costs, title)
        else:
            drawn[name] = _bars(study, rows, column, title)
    return drawn


def _bars(study: Study, rows: Sequence[Row], column: str, title: str) -> Figure:
    groups: dict[str, list[Bar]] = {}
    for comparison in (EPOCHS, TIME):
        compared = [row for row in rows if row.comparison == comparison]
        these = [row for row in compared if column in row.scores]
        if these:
            length = f"{compared[0].epochs} epoch{'s' * (compared[0].epochs != 1)}"
            head = f"{length} each" if comparison == EPOCHS else f"the time of {length} of {study.arms[0].name}"
            if comparison == EPOCHS and len({row.epochs for row in these}) > 1:
                head = "epochs as published"
            groups[head] = [
                Bar(row.arm.name, row.scores[column], "" if comparison == EPOCHS else _length(row)) for row in these
            ]
    first = next(iter(groups.values()))[0].name
    remark = f"Mean ± standard deviation over {_seeds(rows)}, dots are seeds; dashed: {first}. "
    if not all(row.in_time for row in rows):
        remark += "×: of the time it is compared at. "
    return plots.bars(groups, y_label=f"{column} (%)", title=title, remark=remark + "The axis does not begin at zero.")


def _length(row: Row) -> str:
    """The epochs of equal time, and how far from equal they are where that matters."""
    return f"{row.epochs} ep." if row.in_time else f"{row.epochs} ep., {row.relative_time:.1f}×"


def _grid(rows: Sequence[Row], column: str, title: str) -> Figure:
    by_key = {row.arm.key: row.scores[column] for row in rows if row.comparison == EPOCHS and column in row.scores}
    cells = {
        (float(epsilon), float(step)): by_key[f"adv-{min(epsilon, step)}"]
        for epsilon in GRID
        for step in GRID
        if f"adv-{min(epsilon, step)}" in by_key
    }
    if not cells:  # all attacks diverged
        return plots.bars({"": [Bar("Std", by_key["i"])]}, y_label=f"{column} (%)", title=title)
    return plots.attack_grid(
        cells, label=f"{column} (%)", baseline=by_key.get("i", ()), title=title, remark=f"{_epochs(rows)}. {GRID_NOTE}"
    )


def _beta(rows: Sequence[Row], column: str, title: str) -> Figure:
    found: dict[tuple[float, float], Sequence[float]] = {}
    baseline: Sequence[float] = ()
    for row in (row for row in rows if row.comparison == EPOCHS and column in row.scores):
        if row.arm.key.startswith("beta-"):
            alpha, beta = row.arm.key.removeprefix("beta-").split("-")
            found[float(alpha), float(beta)] = row.scores[column]
        else:
            baseline = row.scores[column]
    if not found:  # all mixing diverged
        return plots.bars({"": [Bar("Std", baseline)]}, y_label=f"{column} (%)", title=title)
    remark = f"{_epochs(rows)}; mean ± standard deviation over {_seeds(rows)}."
    return plots.beta_study(found, label=f"{column} (%)", baseline=baseline, title=title, remark=remark)


def _curves(study: Study, rows: Sequence[Row], column: str, costs: Costs | None, title: str) -> Figure:
    groups: dict[str, list[Curve]] = {}
    for arm in study.arms:
        these = sorted((row for row in rows if row.arm == arm and column in row.scores), key=lambda row: row.epochs)
        if not these:
            continue
        values = [row.scores[column] for row in these]
        groups.setdefault("pre-training (epochs)", []).append(Curve(arm.name, [row.epochs for row in these], values))
        if costs is not None:
            relative = seconds_per_image(arm, costs) / seconds_per_image(study.arms[0], costs)
            label = f"pre-training (time of an epoch of {study.arms[0].name})"
            groups.setdefault(label, []).append(Curve(arm.name, [row.epochs * relative for row in these], values))
    remark = f"Each point is a run of its own with its whole schedule; mean ± standard deviation over {_seeds(rows)}."
    return plots.curves(groups, y_label=f"{column} (%)", title=title, remark=remark)


def _probe_curves(study: Study, runs: Runs, title: str) -> dict[str, Figure]:
    """Accuracy after each epoch of the linear classifiers on the longest runs, where evaluations noted it."""
    groups: dict[str, list[Curve]] = {}
    for arm in study.arms:
        own = [run for run in runs if run["arm"] == arm.key]
        longest = [run for run in own if run["epochs"] == max(other["epochs"] for other in own)]
        results = [result for run in longest for result in run["results"]]
        noted = [result["details"]["curve"] for result in results if len(result["details"].get("curve", ())) > 1]
        if noted:
            epochs = [point["epoch"] for point in noted[0]]
            values = [[curve[place]["top1"] for curve in noted] for place in range(len(epochs))]
            groups.setdefault("training of the linear classifier (epochs)", []).append(Curve(arm.name, epochs, values))
    if not groups:
        return {}
    remark = "On the backbones that were trained longest; mean ± standard deviation over seeds."
    return {f"{study.name}-of-the-probe": plots.curves(groups, y_label="top-1 (%)", title=title, remark=remark)}


def _low_shot(rows: Sequence[Row], columns: Sequence[str], title: str) -> Figure:
    groups: dict[str, list[Curve]] = {}
    for row in (row for row in rows if row.scores and row.in_time):
        shots = {int(column.rpartition("@")[2]): row.scores[column] for column in columns if column in row.scores}
        head = "labelled images of each class, k" + (" (equal time)" if row.comparison == TIME else " (equal epochs)")
        x = sorted(shots)
        groups.setdefault(head, []).append(Curve(row.arm.name, x, [shots[k] for k in x]))
    remark = (
        f"Mean ± standard deviation over {_seeds(rows)} of pre-training; each score is a mean over draws of labels."
    )
    return plots.curves(groups, y_label="mean average precision of SVMs (%)", title=title, remark=remark, doubling=True)


def _seeds(rows: Sequence[Row]) -> str:
    count = len({seed for row in rows for seed in row.seeds})
    return f"{count} seed{'s' * (count != 1)}"


def _epochs(rows: Sequence[Row]) -> str:
    epochs = max(row.epochs for row in rows)
    return f"{epochs} epoch{'s' * (epochs != 1)}, {_seeds(rows)}"


def _slug(text: str) -> str:
    kept = "".join(letter if letter.isalnum() else "-" for letter in text.lower())
    return "-".join(part for part in kept.split("-") if part)
