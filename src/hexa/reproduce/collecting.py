"""What the runs of a study found, as one table: mean ± std over seeds, at equal epochs and at equal time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexa import published
from hexa.reproduce.design import Arm, Study
from hexa.reproduce.plan import Costs, Request, equal_time, lengths_of, relative_time

EPOCHS, TIME = "equal epochs", "equal time"
#: How far from 1 a relative time may be, and still be called equal.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Row:
    """One arm at one length. scores: {column: a value for each of `seeds`}; published: {column: percent}.

    minutes: of the runs that trained in one go. interrupted: of those that were stopped and gone on with; sums over
    their sessions, each with its start, which nobody should take for measured. diverged: the seeds whose loss stopped
    being finite; they have no scores.
    """

    arm: Arm
    comparison: str
    epochs: int
    rate: float
    relative_time: float | None
    seeds: tuple[int, ...]
    minutes: tuple[float, ...]
    scores: dict[str, tuple[float, ...]]
    published: dict[str, float]
    diverged: tuple[int, ...] = ()
    interrupted: tuple[float, ...] = ()

    @property
    def in_time(self) -> bool:
        """Whether it took the time it is compared at, which whole epochs miss if there are few."""
        return self.comparison != TIME or self.relative_time is None or abs(self.relative_time - 1) <= TOLERANCE


def rows_of(study: Study, request: Request, costs: Costs | None, runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each arm and length that has a stored run. runs: what final jobs stored."""
    rows = []
    for arm in study.arms:
        lengths = lengths_of(study, arm, request, costs)
        places = [(EPOCHS, epochs) for epochs in lengths]
        if study.equal_time and costs is not None:
            places = [(EPOCHS, lengths[0]), (TIME, equal_time(study, arm, request, costs))]
        for comparison, epochs in places:
            these = [run for run in runs if (run["arm"], run["epochs"]) == (arm.key, epochs)]
            these = [run for run in these if run["seed"] in request.seeds]
            if these:
                time = None if costs is None else relative_time(study, arm, epochs, request, costs)
                rows.append(_row(study, arm, comparison, epochs, time, these))
    return rows


def _row(
    study: Study, arm: Arm, comparison: str, epochs: int, time: float | None, runs: Sequence[Mapping[str, Any]]
) -> Row:
    scores: dict[str, list[float]] = {}
    beside: dict[str, float] = {}
    for run in runs:
        for result in run["results"]:
            for metric in _metrics(study, result):
                scores.setdefault(column(study, result, metric), []).append(result["metrics"][metric])
            beside |= _published(study, arm, epochs, result)
    timed = [run for run in runs if run["pretrain_seconds"] is not None]
    minutes, interrupted = (
        tuple(run["pretrain_seconds"] / 60 for run in timed if bool(run.get("interruptions")) == stopped)
        for stopped in (False, True)
    )
    diverged = tuple(run["seed"] for run in runs if run.get("diverged"))
    seeds = tuple(run["seed"] for run in runs if not run.get("diverged"))
    values = {name: tuple(found) for name, found in scores.items()}
    rate = runs[0]["rate"]
    return Row(arm, comparison, epochs, rate, time, seeds, minutes, values, beside, diverged, interrupted)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The names of all scores, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row.scores))


def _metrics(study: Study, result: Mapping[str, Any]) -> list[str]:
    """The metrics of a result that are columns: those its measure names, or all but spreads and last epochs."""
    wanted = {
        metric
        for measure in study.measures
        if measure.protocol == str(result["protocol"]).partition("/")[0]
        for metric in measure.metrics
    }
    extra = re.compile(r"_(std|last)$")
    return [name for name in result["metrics"] if (name in wanted if wanted else not extra.search(name))]


def column(study: Study, result: Mapping[str, Any], metric: str) -> str:
    """The name of a column: the measure's title, and the metric where it has several."""
    several = len(_metrics(study, result)) > 1
    return f"{result['title']} {metric}" if several else str(result["title"])


def _published(study: Study, arm: Arm, epochs: int, result: Mapping[str, Any]) -> dict[str, float]:
    """What the paper has for this arm, by column; empty where it has nothing."""
    if arm.published is None:
        return {}
    compared = published.beside(result)
    name, length = arm.published
    length = epochs if len(study.lengths) > 1 and study.scale == "full" else length
    row = None if compared is None else published.find(compared.rows, name, length)
    if compared is None or row is None:
        return {}
    places = zip(compared.columns, row.values, strict=True)
    found = {place: value for place, value in places if value is not None}
    metrics = _metrics(study, result)
    if len(metrics) == 1:  # the table's column is a data set, of which this is the metric
        return {column(study, result, metrics[0]): value for value in found.values()}
    # "10 % top1" of a table whose columns name the share of labels too
    by_metric = {place.rpartition(" ")[2]: value for place, value in found.items()}
    return {column(study, result, metric): by_metric[metric] for metric in metrics if metric in by_metric}
