"""What the runs of a study found, as one table: mean ± std over seeds, at equal epochs and at equal time."""

from __future__ import annotations

import csv
import io
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hexa.reporting import published
from hexa.reporting.tables import Cell, format_duration, markdown_table
from hexa.reproduce.design import Arm, Study
from hexa.reproduce.plan import Costs, Request, equal_time, lengths_of, relative_time, search_score

EPOCHS, TIME = "equal epochs", "equal time"


@dataclass(frozen=True)
class Row:
    """One arm at one length. scores: {column: a value for each seed}; published: {column: percent}."""

    arm: Arm
    comparison: str
    epochs: int
    rate: float
    relative_time: float | None
    seeds: tuple[int, ...]
    minutes: tuple[float, ...]
    scores: dict[str, tuple[float, ...]]
    published: dict[str, float]


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
    minutes = tuple(run["pretrain_seconds"] / 60 for run in runs if run["pretrain_seconds"] is not None)
    seeds = tuple(run["seed"] for run in runs)
    values = {name: tuple(found) for name, found in scores.items()}
    return Row(arm, comparison, epochs, runs[0]["rate"], time, seeds, minutes, values, beside)


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


# -- as texts -------------------------------------------------------------------------------------------------------


def table_rows(rows: Sequence[Row], comparison: str) -> list[dict[str, Cell]]:
    """The rows of one comparison for a Markdown table."""
    shown = []
    for row in (row for row in rows if row.comparison == comparison):
        cells: dict[str, Cell] = {"arm": row.arm.name, "epochs": str(row.epochs), "learning rate": f"{row.rate:g}"}
        if row.relative_time is not None:
            cells["relative time"] = f"{row.relative_time:.2f}"
        for name, values in row.scores.items():
            cells[name] = values
            if name in row.published:
                cells[f"{name}, published"] = f"{row.published[name]:.1f}"
        if row.minutes:
            cells["one run took"] = format_duration(60 * statistics.fmean(row.minutes))
        shown.append(cells)
    return shown


def markdown(study: Study, request: Request, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The whole result as a page."""
    seeds = len({seed for row in rows for seed in row.seeds})
    parts = [f"# {study.name}, {study.method}, {study.scale} scale\n\n{sentence(study.question)}\n"]
    spread = "mean ± standard deviation over the seeds" if seeds > 1 else "one seed, so no spread"
    parts.append(f"Data: `{request.data}`; {seeds} seed{'s' * (seeds != 1)}, {spread}. Percent.\n")
    for comparison in (EPOCHS, TIME):
        table = markdown_table(table_rows(rows, comparison))
        if table:
            first = next(row for row in rows if row.comparison == comparison)
            length = f"{first.epochs} epoch{'s' * (first.epochs != 1)}"
            head = "By epochs" if len(study.lengths) > 1 else f"At {comparison}"
            what = f"the time of {length} of {study.arms[0].name}" if comparison == TIME else ""
            parts.append(f"## {head}{': ' + what if what else ''}\n\n{table}")
    if any(row.published for row in rows):
        parts.append("Published: ResNet-50 pre-trained on ImageNet, so beside, not against, a smaller scale.\n")
    parts += [f"- {note}" for note in notes]
    return "\n".join(parts) + "\n"


def sentence(text: str) -> str:
    """With a stop at its end."""
    return text if text.endswith("?") else f"{text}."


def csv_text(rows: Sequence[Row]) -> str:
    """One line an arm, comparison and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arm", "comparison", "epochs", "learning_rate", "metric", "mean", "std", "seeds", "published"])
    for row in rows:
        for name, values in row.scores.items():
            mean, std = mean_and_std(values)
            numbers = [f"{mean:.4f}", "" if std is None else f"{std:.4f}", len(values), row.published.get(name, "")]
            writer.writerow([row.arm.name, row.comparison, row.epochs, f"{row.rate:g}", name, *numbers])
    return text.getvalue()


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample standard deviation (n − 1) of two or more."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def result(
    study: Study,
    request: Request,
    rows: Sequence[Row],
    costs: Costs | None,
    search: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Everything, as JSON: the summary first, then every single run."""
    return {
        "experiment": study.name,
        "question": study.question,
        "method": study.method,
        "scale": study.scale,
        "data": request.data,
        "measured_on": [target.source for target in request.targets],
        "seeds": list(request.seeds),
        "fields": dict(request.fields),
        "machine": {"processor": platform.processor() or platform.machine(), "torch": torch.__version__},
        "seconds_per_image": costs,
        "summary": [_summary(row) for row in rows],
        "notes": list(notes),
        "search": [{key: job[key] for key in ("arm", "epochs", "rate")} | {"score": search_score(job)}
                   for job in search],
        "runs": [_brief(run) for run in runs],
    }  # fmt: skip


def _summary(row: Row) -> dict[str, Any]:
    scores = {}
    for name, values in row.scores.items():
        mean, std = mean_and_std(values)
        scores[name] = {"mean": mean, "std": std, "values": list(values), "published": row.published.get(name)}
    return {
        "arm": row.arm.name,
        "key": row.arm.key,
        "recipe": row.arm.recipe,
        "comparison": row.comparison,
        "epochs": row.epochs,
        "learning_rate": row.rate,
        "relative_time": row.relative_time,
        "seeds": list(row.seeds),
        "minutes": list(row.minutes),
        "scores": scores,
    }


def _brief(run: Mapping[str, Any]) -> dict[str, Any]:
    results = [
        {key: result[key] for key in ("title", "protocol", "metrics", "data", "seed", "notes")}
        for result in run["results"]
    ]
    kept = ("name", "arm", "epochs", "rate", "seed", "pretrain_seconds", "environment")
    return {key: run[key] for key in kept} | {"results": results}


def notes_of(
    study: Study,
    rows: Sequence[Row],
    search: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
) -> list[str]:
    """What a reader of the tables should know."""
    notes = list(study.notes)
    compared = [published.beside(result) for run in runs for result in run["results"]]
    notes += sorted({f"{one.title}: {one.caution}." for one in compared if one is not None and one.caution})
    for row in rows:
        if row.comparison == TIME and row.relative_time is not None and abs(row.relative_time - 1) > 0.1:
            notes.append(f"{row.arm.name}: whole epochs come to {row.relative_time:.2f} of the time it should have.")
    for arm in study.arms if search else ():
        jobs = [job for job in search if job["arm"] == arm.key]
        if jobs:
            best = min(jobs, key=lambda job: (-search_score(job), job["rate"]))["rate"]
            rates = sorted(job["rate"] for job in jobs)
            if best in (rates[0], rates[-1]):
                end = "smallest" if best == rates[0] else "largest"
                notes.append(f"{arm.name} chose the {end} rate it could have, {best:g}: a better one may lie beyond.")
    if search:
        notes.append(
            f"Each arm has the learning rate that runs of {search[0]['epochs']} epochs found best on held-out training "
            "images; test images were scored with that one alone."
        )
    elif study.scale == "small":
        notes.append("No learning rate was searched for: all arms have the one given.")
    if any(row.relative_time is not None for row in rows):
        notes.append("Relative time: by a benchmark of steps and views on this machine, before the runs.")
    return notes
