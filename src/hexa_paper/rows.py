"""What the runs of a study found, as one list of rows that tables, figures and files are all made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hexa.reporting.tables import mean_and_std
from hexa_paper import published
from hexa_paper.plan import Plan, Stored
from hexa_paper.studies import Arm, Study

Outcome = dict[str, Any]
"""One arm at one length, as JSON.

arm, key, recipe: the arm's.
comparison: EPOCHS or TIME.
epochs, learning_rate: of its runs.
relative_time: over all epochs of the first arm; None where costs are unknown.
seeds: of the runs that have scores.
diverged: the seeds whose loss became infinite or NaN; they have no scores.
scores: by column mean, std, the values of the seeds, and what was published, all in percent.
"""
EPOCHS = "equal epochs"
TIME = "equal time"
#: How far from 1 a relative time may be, and still be called equal.
TOLERANCE = 0.15


def in_time(row: Outcome) -> bool:
    """Whether it took the time it is compared at, which whole epochs miss if there are few."""
    time = row["relative_time"]
    return row["comparison"] != TIME or time is None or abs(time - 1) <= TOLERANCE


def rows_of(plan: Plan, runs: Sequence[Stored]) -> list[Outcome]:
    """A row for each arm and length that has a stored run. runs: what final jobs stored."""
    rows = []
    runs = [run for run in runs if run["seed"] in plan.request.seeds]
    if plan.study.one_run:
        runs = [part for run in runs for part in _by_length(run)]
    for arm in plan.study.arms:
        lengths = plan.lengths_of(arm)
        places = [(EPOCHS, epochs) for epochs in lengths]
        if plan.compares_times:
            places = [(EPOCHS, lengths[0]), (TIME, plan.equal_time(arm))]
        for comparison, epochs in places:
            if these := [run for run in runs if (run["arm"], run["epochs"]) == (arm.key, epochs)]:
                rows.append(
                    _row(
                        plan.study, arm, comparison, epochs, plan.relative_time(arm, epochs), these
                    )
                )
    return rows


def _by_length(run: Stored) -> list[Stored]:
    """A run that was measured at several epochs, as a run of each length."""
    if run.get("diverged"):
        return [run]
    made: dict[int, list[Any]] = {}
    for result in run["results"]:
        made.setdefault(result["epochs"], []).append(result)
    return [{**run, "epochs": epochs, "results": made[epochs]} for epochs in sorted(made)]


def _row(
    study: Study, arm: Arm, comparison: str, epochs: int, time: float | None, runs: Sequence[Stored]
) -> Outcome:
    values: dict[str, list[float]] = {}
    beside: dict[str, float] = {}
    for result in (result for run in runs for result in run["results"]):
        columns = metrics_of(study, result)
        for metric, column in columns.items():
            values.setdefault(column, []).append(result["metrics"][metric])
        beside |= _published(study, arm, epochs, result, columns)
    found = {
        name: dict(zip(("mean", "std"), mean_and_std(of), strict=True))
        for name, of in values.items()
    }
    return {
        "arm": arm.name,
        "key": arm.key,
        "recipe": arm.recipe,
        "comparison": comparison,
        "epochs": epochs,
        "learning_rate": runs[0]["rate"],
        "relative_time": time,
        "seeds": [run["seed"] for run in runs if not run.get("diverged")],
        "diverged": [run["seed"] for run in runs if run.get("diverged")],
        "scores": {
            name: one | {"values": values[name], "published": beside.get(name)}
            for name, one in found.items()
        },
    }


def columns_of(rows: Sequence[Outcome]) -> list[str]:
    """The names of all scores, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row["scores"]))


def metrics_of(study: Study, result: Mapping[str, Any]) -> dict[str, str]:
    """The metrics of a result that are columns (those its measure names, or all but spreads and last epochs) by name.

    A column is called by the measure's title, and the metric where there are several.
    """
    protocol = str(result["protocol"]).partition("/")[0]
    measures = [measure for measure in study.measures if measure.protocol == protocol]
    called = [measure for measure in measures if str(result["title"]).startswith(measure.title)]
    wanted = {metric for measure in called or measures for metric in measure.metrics}
    metrics = [
        name
        for name in result["metrics"]
        if name in wanted or not (wanted or re.search("_(std|last)$", name))
    ]
    return {
        name: f"{result['title']} {name}" if len(metrics) > 1 else str(result["title"])
        for name in metrics
    }


def _published(
    study: Study, arm: Arm, epochs: int, result: Mapping[str, Any], columns: Mapping[str, str]
) -> dict[str, float]:
    """What the paper has for this arm, by column; empty where it has nothing."""
    compared = published.beside(result) if arm.published else None
    if compared is None or arm.published is None:
        return {}
    name, length = arm.published
    row = published.find(
        compared.rows, name, epochs if len(study.lengths) > 1 and study.scale == "full" else length
    )
    values = zip(compared.metrics, row.values if row else (), strict=False)
    return {
        columns[metric]: value
        for metric, value in values
        if metric in columns and value is not None
    }
