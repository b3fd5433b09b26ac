"""The figures of a study: which of `hexa_paper.figures.charts` shows it, and from which of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from hexa.reporting.style import SUFFIXES, save
from hexa.reporting.tables import counted
from hexa_paper.figures import charts
from hexa_paper.figures.figure import short_name
from hexa_paper.plan import Plan
from hexa_paper.studies import EXPERIMENTS, METHODS
from hexa_paper.tables import EPOCHS, TIME, Row, in_time

#: Below the study's.
FOLDER = "figures"
#: By panel and arm the values of all seeds, by x.
_Curves = dict[str, dict[str, dict[float, Sequence[float]]]]
_SPREAD = "mean ± standard deviation over"


def draw(plan: Plan, rows: Sequence[Row]) -> None:
    """Write every figure of a study as PNG and as SVG."""
    for name, figure in figures(plan, rows).items():
        for suffix in SUFFIXES:
            save(figure, plan.tables / FOLDER / f"{name}{suffix}")


def figures(plan: Plan, rows: Sequence[Row]) -> dict[str, Figure]:
    """Every figure of a study, by the name of its file; none if all runs diverged."""
    study = plan.study
    columns = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    named = METHODS.get(study.method, EXPERIMENTS[study.name])["title"]
    title = f"{study.name}: {named} on {short_name(plan.request.data)}"
    if columns and study.measures[0].protocol == "low-shot":
        return {study.name: _low_shot(rows, title)}
    drawn = _probe_curves(plan, title) if study.name == "learning-curves" else {}
    for column in columns:
        scored = [row for row in rows if column in row["scores"]]
        if len(study.lengths) > 1:
            figure = _lengths(plan, scored, column, title)
        else:
            figure = _bars(plan, rows, column, title)
        words = re.findall(r"[^\W_]+", column.lower())
        drawn["-".join([study.name, *words])] = figure
    return drawn


def _bars(
    plan: Plan,
    rows: Sequence[Row],
    column: str,
    title: str,
) -> Figure:
    groups: dict[str, dict[str, Sequence[float]]] = {}
    for comparison in (EPOCHS, TIME):
        compared = [row for row in rows if row["comparison"] == comparison]
        these = [row for row in compared if column in row["scores"]]
        if not these:
            continue
        length = counted(compared[0]["epochs"], "epoch")
        head = f"{length} each"
        if comparison == TIME:
            head = f"the time of {length} of {plan.study.arms[0].name}"
        elif len({row["epochs"] for row in these if row["epochs"]}) > 1:
            head = "epochs as published"
        groups[head] = {row["arm"] + _length(row): row["scores"][column]["values"] for row in these}
    first = next(iter(next(iter(groups.values())))).partition("\n")[0]
    remark = f"{_SPREAD.capitalize()} {_seeds(rows)}, dots are seeds; dashed: {first}. "
    if not all(map(in_time, rows)):
        remark += "×: of the time it is compared at. "
    remark += "The axis does not begin at zero."
    return charts.bars(groups, y_label=f"{column} (%)", title=title, remark=remark)


def _length(row: Row) -> str:
    """A line with the epochs of equal time, and how far from equal they are if that matters."""
    if row["comparison"] == EPOCHS:
        return ""
    off = "" if in_time(row) else f", {row['relative_time']:.1f}×"
    return f"\n({row['epochs']} ep.{off})"


def _lengths(
    plan: Plan,
    rows: Sequence[Row],
    column: str,
    title: str,
) -> Figure:
    """Scores by epochs, and by the counted time."""
    groups: _Curves = {}
    plain = plan.study.arms[0]
    for row in sorted(rows, key=lambda row: row["epochs"]):
        arm = next(arm for arm in plan.study.arms if arm.key == row["key"])
        relative = plan.cost(arm) / plan.cost(plain)
        scales = {
            "pre-training (epochs)": float(row["epochs"]),
            f"pre-training (counted time of an epoch of {plain.name})": row["epochs"] * relative,
        }
        for label, x in scales.items():
            values = row["scores"][column]["values"]
            groups.setdefault(label, {}).setdefault(row["arm"], {})[x] = values
    remark = f"Points are checkpoints of one run; {_SPREAD} {_seeds(rows)}."
    return charts.curves(groups, y_label=f"{column} (%)", title=title, remark=remark)


def _probe_curves(plan: Plan, title: str) -> dict[str, Figure]:
    """Accuracy after each epoch of the linear classifiers on the longest runs, if evaluations noted it."""
    drawn: dict[str, dict[float, Sequence[float]]] = {}
    jobs = plan.final()
    for arm in plan.study.arms:
        noted = []
        for job in jobs:
            if job.arm != arm or job.experiment.epochs != plan.epochs_of(arm):
                continue
            for measure, result in job.measured(plan.request.folder):
                curve = result["details"].get("curve", ())
                if len(curve) > 1 and measure.epochs in (None, job.experiment.epochs):
                    noted.append(curve)
        for points in zip(*noted, strict=False):
            drawn.setdefault(arm.name, {})[points[0]["epoch"]] = [point["top1"] for point in points]
    if not drawn:
        return {}
    groups = {"training of the linear classifier (epochs)": drawn}
    remark = f"On the backbones that were trained longest; {_SPREAD} seeds."
    figure = charts.curves(groups, y_label="top-1 (%)", title=title, remark=remark)
    return {f"{plan.study.name}-of-the-probe": figure}


def _low_shot(rows: Sequence[Row], title: str) -> Figure:
    groups: _Curves = {}
    for row in (row for row in rows if row["scores"] and in_time(row)):
        shots = {
            int(column.rpartition("@")[2]): score["values"]
            for column, score in row["scores"].items()
        }
        head = f"labelled images of each class, k ({row['comparison']})"
        groups.setdefault(head, {})[row["arm"]] = {k: shots[k] for k in sorted(shots)}
    remark = f"{_SPREAD.capitalize()} {_seeds(rows)} of pre-training; each score is a mean over draws of labels."
    label = "mean average precision of SVMs (%)"
    return charts.curves(groups, y_label=label, title=title, remark=remark, doubling=True)


def _seeds(rows: Sequence[Row]) -> str:
    return counted(len({seed for row in rows for seed in row["seeds"]}), "seed")
