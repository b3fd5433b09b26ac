"""The figures of a study: which of `hexa_paper.figures.charts` shows it, and from which of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from hexa.reporting.style import SUFFIXES, save
from hexa.reporting.tables import counted
from hexa_paper.figures import charts as plots
from hexa_paper.figures.figure import short_name
from hexa_paper.plan import Plan, Stored
from hexa_paper.rows import EPOCHS, TIME, Outcome, columns_of, in_time
from hexa_paper.studies import EXPERIMENTS, METHODS

#: Below the study's.
FOLDER = "figures"
#: By panel and arm the values of all seeds, by x.
_Curves = dict[str, dict[str, dict[float, Sequence[float]]]]
_SPREAD = "mean ± standard deviation over"


def draw(plan: Plan, rows: Sequence[Outcome], runs: Sequence[Stored]) -> None:
    """Write every figure of a study into its folder, as PNG and as SVG."""
    for name, figure in figures(plan, rows, runs).items():
        for suffix in SUFFIXES:
            save(figure, plan.request.folder / FOLDER / f"{name}{suffix}")


def figures(plan: Plan, rows: Sequence[Outcome], runs: Sequence[Stored]) -> dict[str, Figure]:
    """Every figure of a study by its file's name. runs: what its final jobs stored."""
    study = plan.study
    columns = columns_of(rows)  # empty if every run diverged, so nothing is drawn
    named = METHODS.get(study.method, EXPERIMENTS[study.name])["title"]
    title = f"{study.name}: {named} on {short_name(plan.request.data)}"
    if columns and study.measures[0].protocol == "low-shot":
        return {study.name: _low_shot(rows, title)}
    drawn = _probe_curves(plan, runs, title) if study.name == "learning-curves" else {}
    for column in columns:
        scored = [row for row in rows if column in row["scores"]]
        figure = (_curves if len(study.lengths) > 1 else _cells)(plan, scored, column, title)
        words = re.findall(r"[^\W_]+", column.lower())
        drawn["-".join([study.name, *words])] = figure or _bars(plan, rows, column, title)
    return drawn


def _bars(plan: Plan, rows: Sequence[Outcome], column: str, title: str) -> Figure:
    groups: dict[str, dict[str, Sequence[float]]] = {}
    for comparison in (EPOCHS, TIME):
        compared = [row for row in rows if row["comparison"] == comparison]
        if these := [row for row in compared if column in row["scores"]]:
            length = counted(compared[0]["epochs"], "epoch")
            equal = (
                "epochs as published"
                if len({row["epochs"] for row in these}) > 1
                else f"{length} each"
            )
            head = (
                equal
                if comparison == EPOCHS
                else f"the time of {length} of {plan.study.arms[0].name}"
            )
            groups[head] = {
                row["arm"] + _length(row): row["scores"][column]["values"] for row in these
            }
    first = next(iter(next(iter(groups.values())))).partition("\n")[0]
    remark = f"{_SPREAD.capitalize()} {_seeds(rows)}, dots are seeds; dashed: {first}. "
    remark += "×: of the time it is compared at. " if not all(map(in_time, rows)) else ""
    return plots.bars(
        groups,
        y_label=f"{column} (%)",
        title=title,
        remark=remark + "The axis does not begin at zero.",
    )


def _length(row: Outcome) -> str:
    """A line with the epochs of equal time, and how far from equal they are where that matters."""
    off = "" if in_time(row) else f", {row['relative_time']:.1f}×"
    return f"\n({row['epochs']} ep.{off})" if row["comparison"] != EPOCHS else ""


def _cells(plan: Plan, rows: Sequence[Outcome], column: str, title: str) -> Figure | None:
    """The attack grid or the study of Beta; None for other studies, and if all but the plain arm diverged."""
    study = plan.study
    values = {
        row["key"]: row["scores"][column]["values"] for row in rows if row["comparison"] == EPOCHS
    }
    given: dict[str, Any] = {
        "label": f"{column} (%)",
        "baseline": values.pop("i", ()),
        "title": title,
    }
    length = f"{counted(max((row['epochs'] for row in rows), default=0), 'epoch')}, {_seeds(rows)}"
    if study.name == "attack-grid" and values:
        moved = [int(arm.key.removeprefix("adv-")) for arm in study.arms[1:]]
        cells = {(float(e), float(s)): values.get(f"adv-{min(e, s)}") for e in moved for s in moved}
        known = {place: of for place, of in cells.items() if of}
        return plots.attack_grid(known, **given, remark=f"{length}. {study.notes[0]}")
    if study.name == "beta-study" and values:
        pairs = {key: key.removeprefix("beta-").split("-") for key in values}
        scores = {(float(alpha), float(beta)): values[key] for key, (alpha, beta) in pairs.items()}
        return plots.beta_study(scores, **given, remark=f"{length}; {_SPREAD} {_seeds(rows)}.")
    return None


def _curves(plan: Plan, rows: Sequence[Outcome], column: str, title: str) -> Figure:
    groups: _Curves = {}
    plain = plan.study.arms[0]
    for row in sorted(rows, key=lambda row: row["epochs"]):
        scales = {"pre-training (epochs)": float(row["epochs"])}
        if plan.costs is not None:
            arm = next(arm for arm in plan.study.arms if arm.key == row["key"])
            relative = plan.seconds(arm) / plan.seconds(plain)
            scales[f"pre-training (time of an epoch of {plain.name})"] = row["epochs"] * relative
        for label, x in scales.items():
            groups.setdefault(label, {}).setdefault(row["arm"], {})[x] = row["scores"][column][
                "values"
            ]
    points = (
        "Points are checkpoints of one run"
        if plan.study.one_run
        else "Each point is a run with a whole schedule"
    )
    return plots.curves(
        groups, y_label=f"{column} (%)", title=title, remark=f"{points}; {_SPREAD} {_seeds(rows)}."
    )


def _probe_curves(plan: Plan, runs: Sequence[Stored], title: str) -> dict[str, Figure]:
    """Accuracy after each epoch of the linear classifiers on the longest runs, where evaluations noted it."""
    drawn: dict[str, dict[float, Sequence[float]]] = {}
    for arm in plan.study.arms:
        own = [run for run in runs if run["arm"] == arm.key]
        results = [
            r
            for run in own
            if run["epochs"] == max(o["epochs"] for o in own)
            for r in run["results"]
        ]
        noted = [
            result["details"]["curve"]
            for result in results
            if len(result["details"].get("curve", ())) > 1
        ]
        for points in zip(*noted, strict=False):
            drawn.setdefault(arm.name, {})[points[0]["epoch"]] = [point["top1"] for point in points]
    if not drawn:
        return {}
    groups = {"training of the linear classifier (epochs)": drawn}
    remark = f"On the backbones that were trained longest; {_SPREAD} seeds."
    return {
        f"{plan.study.name}-of-the-probe": plots.curves(
            groups, y_label="top-1 (%)", title=title, remark=remark
        )
    }


def _low_shot(rows: Sequence[Outcome], title: str) -> Figure:
    groups: _Curves = {}
    for row in (row for row in rows if row["scores"] and in_time(row)):
        shots = {
            int(column.rpartition("@")[2]): score["values"]
            for column, score in row["scores"].items()
        }
        head = f"labelled images of each class, k ({row['comparison']})"
        groups.setdefault(head, {})[row["arm"]] = {k: shots[k] for k in sorted(shots)}
    remark = f"{_SPREAD.capitalize()} {_seeds(rows)} of pre-training; each score is a mean over draws of labels."
    return plots.curves(
        groups,
        y_label="mean average precision of SVMs (%)",
        title=title,
        remark=remark,
        doubling=True,
    )


def _seeds(rows: Sequence[Outcome]) -> str:
    return counted(len({seed for row in rows for seed in row["seeds"]}), "seed")
