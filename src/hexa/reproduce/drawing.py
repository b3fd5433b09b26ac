"""The figures of a study: which of `hexa.reporting.plots` shows it, and from which of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from hexa.reporting import plots
from hexa.reporting.figure import short_name
from hexa.reporting.plots import SUFFIXES, Bar, Curve
from hexa.reporting.tables import counted
from hexa.reproduce.arms import METHODS
from hexa.reproduce.collecting import EPOCHS, TIME, Row, columns_of
from hexa.reproduce.plan import Costs, Stored, seconds_per_image
from hexa.reproduce.studies import GRID, GRID_NOTE, Study

#: Below the study's.
FOLDER = "figures"
_SPREAD = "mean ± standard deviation over"


def draw(
    study: Study, rows: Sequence[Row], runs: Sequence[Stored], costs: Costs | None, out: Path, data: str
) -> list[Path]:
    """Write every figure of a study into a folder below `out`, as PNG and as SVG."""
    drawn = figures(study, rows, runs, costs, data).items()
    return [plots.save(figure, out / FOLDER / f"{name}{suffix}") for name, figure in drawn for suffix in SUFFIXES]


def figures(
    study: Study, rows: Sequence[Row], runs: Sequence[Stored], costs: Costs | None, data: str
) -> dict[str, Figure]:
    """Every figure of a study by its file's name. runs: what its final jobs stored."""
    columns = columns_of(rows)  # empty if every run diverged, so nothing is drawn
    title = f"{study.name}: {METHODS[study.method].title} on {short_name(data)}"
    if study.name in ("low-shot-curve", "table2"):
        return {study.name: _low_shot(rows, columns, title)} if columns else {}
    drawn = _probe_curves(study, runs, title) if study.name == "learning-curves" else {}
    for column in columns:
        scored = [row for row in rows if column in row.scores]
        name = f"{study.name}-{_slug(column)}"
        if len(study.lengths) > 1:
            drawn[name] = _curves(study, scored, column, costs, title)
        else:
            special: Callable[..., Figure | None] | None = {"attack-grid": _grid, "beta-study": _beta}.get(study.name)
            figure = special(scored, column, title) if special else None
            drawn[name] = figure or _bars(study, rows, column, title)
    return drawn


def _bars(study: Study, rows: Sequence[Row], column: str, title: str) -> Figure:
    groups: dict[str, list[Bar]] = {}
    for comparison in (EPOCHS, TIME):
        compared = [row for row in rows if row.comparison == comparison]
        these = [row for row in compared if column in row.scores]
        if these:
            length = counted(compared[0].epochs, "epoch")
            head = f"{length} each" if comparison == EPOCHS else f"the time of {length} of {study.arms[0].name}"
            if comparison == EPOCHS and len({row.epochs for row in these}) > 1:
                head = "epochs as published"
            remarks = ["" if comparison == EPOCHS else _length(row) for row in these]
            groups[head] = [Bar(r.arm.name, r.scores[column], remark) for r, remark in zip(these, remarks, strict=True)]
    first = next(iter(groups.values()))[0].name
    remark = f"{_SPREAD.capitalize()} {_seeds(rows)}, dots are seeds; dashed: {first}. "
    if not all(row.in_time for row in rows):
        remark += "×: of the time it is compared at. "
    return plots.bars(groups, y_label=f"{column} (%)", title=title, remark=remark + "The axis does not begin at zero.")


def _length(row: Row) -> str:
    """The epochs of equal time, and how far from equal they are where that matters."""
    return f"{row.epochs} ep." if row.in_time else f"{row.epochs} ep., {row.relative_time:.1f}×"


def _grid(rows: Sequence[Row], column: str, title: str) -> Figure | None:
    """None if all attacks diverged."""
    by_key = {row.arm.key: row.scores[column] for row in rows if row.comparison == EPOCHS}
    keys = {(float(epsilon), float(step)): f"adv-{min(epsilon, step)}" for epsilon in GRID for step in GRID}
    cells = {place: by_key[key] for place, key in keys.items() if key in by_key}
    remark = f"{_epochs(rows)}. {GRID_NOTE}"
    baseline = by_key.get("i", ())
    return (
        plots.attack_grid(cells, label=f"{column} (%)", baseline=baseline, title=title, remark=remark)
        if cells
        else None
    )


def _beta(rows: Sequence[Row], column: str, title: str) -> Figure | None:
    """None if all mixing diverged."""
    by_key = {row.arm.key: row.scores[column] for row in rows if row.comparison == EPOCHS}
    pairs = {key: key.removeprefix("beta-").split("-") for key in by_key if key != "i"}
    scores = {(float(alpha), float(beta)): by_key[key] for key, (alpha, beta) in pairs.items()}
    remark = f"{_epochs(rows)}; {_SPREAD} {_seeds(rows)}."
    baseline = by_key.get("i", ())
    return (
        plots.beta_study(scores, label=f"{column} (%)", baseline=baseline, title=title, remark=remark)
        if scores
        else None
    )


def _curves(study: Study, rows: Sequence[Row], column: str, costs: Costs | None, title: str) -> Figure:
    groups: dict[str, list[Curve]] = {}
    for arm in study.arms:
        these = sorted((row for row in rows if row.arm == arm), key=lambda row: row.epochs)
        values = [row.scores[column] for row in these]
        scales = {"pre-training (epochs)": 1.0}
        if costs is not None:
            relative = seconds_per_image(arm, costs) / seconds_per_image(study.arms[0], costs)
            scales[f"pre-training (time of an epoch of {study.arms[0].name})"] = relative
        for label, scale in scales.items() if these else ():
            groups.setdefault(label, []).append(Curve(arm.name, [row.epochs * scale for row in these], values))
    points = "Points are checkpoints of one run" if study.one_run else "Each point is a run with a whole schedule"
    remark = f"{points}; {_SPREAD} {_seeds(rows)}."
    return plots.curves(groups, y_label=f"{column} (%)", title=title, remark=remark)


def _probe_curves(study: Study, runs: Sequence[Stored], title: str) -> dict[str, Figure]:
    """Accuracy after each epoch of the linear classifiers on the longest runs, where evaluations noted it."""
    drawn = []
    for arm in study.arms:
        own = [run for run in runs if run["arm"] == arm.key]
        results = [r for run in own if run["epochs"] == max(o["epochs"] for o in own) for r in run["results"]]
        noted = [result["details"]["curve"] for result in results if len(result["details"].get("curve", ())) > 1]
        if noted:
            values = [[point["top1"] for point in points] for points in zip(*noted, strict=False)]
            drawn.append(Curve(arm.name, [point["epoch"] for point in noted[0]], values))
    if not drawn:
        return {}
    groups = {"training of the linear classifier (epochs)": drawn}
    remark = f"On the backbones that were trained longest; {_SPREAD} seeds."
    return {f"{study.name}-of-the-probe": plots.curves(groups, y_label="top-1 (%)", title=title, remark=remark)}


def _low_shot(rows: Sequence[Row], columns: Sequence[str], title: str) -> Figure:
    groups: dict[str, list[Curve]] = {}
    for row in (row for row in rows if row.scores and row.in_time):
        shots = {int(column.rpartition("@")[2]): row.scores[column] for column in columns if column in row.scores}
        x = sorted(shots)
        head = f"labelled images of each class, k ({row.comparison})"
        groups.setdefault(head, []).append(Curve(row.arm.name, x, [shots[k] for k in x]))
    remark = f"{_SPREAD.capitalize()} {_seeds(rows)} of pre-training; each score is a mean over draws of labels."
    return plots.curves(groups, y_label="mean average precision of SVMs (%)", title=title, remark=remark, doubling=True)


def _seeds(rows: Sequence[Row]) -> str:
    return counted(len({seed for row in rows for seed in row.seeds}), "seed")


def _epochs(rows: Sequence[Row]) -> str:
    return f"{counted(max(row.epochs for row in rows), 'epoch')}, {_seeds(rows)}"


def _slug(text: str) -> str:
    kept = "".join(letter if letter.isalnum() else "-" for letter in text.lower())
    return "-".join(part for part in kept.split("-") if part)
