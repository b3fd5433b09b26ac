"""The results of a study as tables: a page and JSON, both made of the files of its runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hexa.reporting.tables import (
    NOTHING,
    best_of,
    counted,
    mean_and_std,
    mean_std,
    text,
)
from hexa_paper import published, results
from hexa_paper.plan import Job, Plan
from hexa_paper.studies import TABLES, Arm, Measure, Study, command_of, shown

Cell = str | Sequence[float] | None
Row = dict[str, Any]
"""One arm at one length, as JSON.

arm, key, recipe: the arm's.
comparison: EPOCHS or TIME.
epochs, learning_rate: of its runs.
relative_time: counted, over all epochs of the first arm; None if it is unknown.
seconds: of pre-training, of every run with scores.
seeds: of the runs with scores.
diverged: the seeds whose loss became infinite or NaN.
scores: by column mean, std, the values of the seeds, and the published value, all in percent.
"""
EPOCHS = "equal epochs"
TIME = "equal time"
#: The largest distance from 1 of a relative time that is still called equal.
TOLERANCE = 0.15
#: Files of a study.
PAGE = "table.md"
RESULT = "result.json"
#: Metrics that are never a column by themselves: spreads, and last epochs.
_MINOR = re.compile("_(std|last)$")


def write(plan: Plan) -> list[Row]:
    """Write the tables of a study, and return their rows; nothing if no run has results."""
    jobs = plan.final()
    rows = rows_of(plan, jobs)
    if not rows:
        return []
    notes = notes_of(plan, jobs, rows)
    results.write(plan.tables / RESULT, _result(plan, jobs, rows, notes))
    results.write(plan.tables / PAGE, markdown(plan, rows, notes))
    return rows


# -- rows -------------------------------------------------------------------------------------------------------------


def in_time(row: Row) -> bool:
    """True if a row took the time that it is compared at, which whole epochs may miss."""
    time = row["relative_time"]
    return row["comparison"] != TIME or time is None or abs(time - 1) <= TOLERANCE


def rows_of(plan: Plan, jobs: Sequence[Job]) -> list[Row]:
    """A row for each arm and length of which a run is done."""
    rows = []
    for arm in plan.study.arms:
        own = [job for job in jobs if job.arm == arm]
        lengths = plan.lengths_of(arm) if arm.epochs != 0 else [0]
        places = [(EPOCHS, epochs) for epochs in lengths]
        places += [(TIME, epochs) for epochs in plan.equal_times(arm)]
        for comparison, epochs in places:
            row = _row(plan, arm, comparison, epochs, own)
            if row["seeds"] or row["diverged"]:
                rows.append(row)
    return rows


def _row(plan: Plan, arm: Arm, comparison: str, epochs: int, jobs: Sequence[Job]) -> Row:
    out = plan.request.folder
    row: Row = {
        "arm": arm.name,
        "key": arm.key,
        "recipe": arm.recipe,
        "comparison": comparison,
        "epochs": epochs,
        "learning_rate": None,
        "relative_time": plan.relative_time(arm, epochs),
        "seconds": [],
        "seeds": [],
        "diverged": [],
        "scores": {},
    }
    for job in jobs:
        one_length = len(plan.study.lengths) > 1 or arm.epochs == 0
        found = results.read(out, job.name)
        if found is None or not (one_length or job.experiment.epochs == epochs):
            continue
        if arm.epochs != 0:
            row["learning_rate"] = job.rate
        if "diverged" in found:
            row["diverged"].append(job.experiment.seed)
        elif not job.missing(out):
            row["seeds"].append(job.experiment.seed)
            row["seconds"].append(found.get("pretrain_seconds"))
            for measure, result in job.measured(out):
                if measure.epochs in (None, epochs):
                    _add(row["scores"], plan, arm, measure, result)
    for score in row["scores"].values():
        score["mean"], score["std"] = mean_and_std(score["values"])
    return row


def _add(
    scores: dict[str, Any], plan: Plan, arm: Arm, measure: Measure, result: Mapping[str, Any]
) -> None:
    """Add the columns of a result, each called by its measure, and by the metric if there are several."""
    columns = columns_of(measure, result["metrics"], plan.column(measure))
    values = _published(plan.study, arm, measure, result)
    for metric, column in columns.items():
        empty: dict[str, Any] = {
            "mean": None,
            "std": None,
            "values": [],
            "published": values.get(metric),
        }
        scores.setdefault(column, empty)["values"].append(result["metrics"][metric])


def columns_of(measure: Measure, metrics: Mapping[str, float], title: str) -> dict[str, str]:
    """The metrics that are columns, those the measure names or all but spreads and last epochs, with their titles."""
    wanted = measure.metrics or [name for name in metrics if not _MINOR.search(name)]
    names = [name for name in metrics if name in wanted]
    return {name: f"{title} {name}" if len(names) > 1 else title for name in names}


def _published(
    study: Study, arm: Arm, measure: Measure, result: Mapping[str, Any]
) -> dict[str, float]:
    """The published values of an arm by metric; empty if there are none."""
    compared = published.beside(result) if arm.published else None
    if compared is None or arm.published is None:
        return {}
    name, epochs = arm.published
    if measure.epochs is not None and study.scale == "full":
        epochs = measure.epochs
    row = published.find(compared.rows, name, epochs)
    values = zip(compared.metrics, row.values if row else (), strict=False)
    return {metric: value for metric, value in values if value is not None}


def scores_of(job: Job, found: Mapping[str, Any]) -> str:
    """The first column of each evaluation of a finished job, in a line."""
    if "diverged" in found:
        return f"diverged, {found['diverged']}"
    words = []
    for measure in job.measures:
        metrics = found["results"][measure.key]["metrics"]
        for metric, column in list(columns_of(measure, metrics, measure.title).items())[:1]:
            words.append(f"{column} {metrics[metric]:.2f}")
    return " · ".join(words)


# -- a page -----------------------------------------------------------------------------------------------------------


def title(study: Study) -> str:
    """The headline of a study."""
    return f"{study.name}, {study.method}, {study.scale} scale: {study.question}"


def markdown(plan: Plan, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The whole result as a page."""
    study = plan.study
    seeds = len({seed for row in rows for seed in (*row["seeds"], *row["diverged"])})
    spread = "one seed, so no spread"
    if seeds > 1:
        spread = f"mean ± standard deviation over {seeds} seeds"
    parts = [
        f"# {study.name}, {study.method}, {study.scale} scale\n\n{study.question}\n",
        f"Data: `{plan.request.data}`; {spread}. Percent.\n",
    ]
    for comparison in (EPOCHS, TIME):
        these = [row for row in rows if row["comparison"] == comparison]
        if not these:
            continue
        head = "By epochs" if len(study.lengths) > 1 else f"At {comparison}"
        if comparison == TIME:
            length = counted(these[0]["epochs"], "epoch")
            head += f": the time of {length} of {study.arms[0].name}"
        parts.append(f"## {head}\n\n{markdown_table([_cells(row, these) for row in these])}")
    if study.name in TABLES:
        compared = TABLES[study.name]
        parts.append(f"## Published: {compared.title}\n")
        parts.append(markdown_table(list(_published_rows(study.name))))
    return "\n".join([*parts, *(f"- {note}" for note in notes)]) + "\n"


def markdown_table(rows: Sequence[Mapping[str, Cell]]) -> str:
    """The rows as Markdown, the best mean of each column in bold; ends with a newline.

    rows: mappings of column name to text, several numbers (shown as mean ± std) or None. Larger is better. Columns
    appear in the order in which they are first named.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns]
    for row in rows:
        cells = [row.get(name) for name in columns]
        lines.append([cell if isinstance(cell, str) else mean_std(cell or []) for cell in cells])
    for place, name in enumerate(columns):
        values = [row.get(name) for row in rows]
        for best in best_of([[] if isinstance(cell, str) else cell or [] for cell in values]):
            lines[1 + best][place] = f"**{lines[1 + best][place]}**"
    head, *body = (f"| {' | '.join(map(_escaped, cells))} |\n" for cells in lines)
    return f"{head}|---|{'---:|' * (len(columns) - 1)}\n{''.join(body)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _cells(row: Row, rows: Sequence[Row]) -> dict[str, Cell]:
    """A row of a Markdown table, among the rows of its comparison; a mean is of the seeds that did not diverge."""
    rate = row["learning_rate"]
    seconds = [value for value in row["seconds"] if value is not None]
    found: dict[str, Cell] = {"arm": row["arm"], "epochs": str(row["epochs"])}
    found["learning rate"] = NOTHING if rate is None else f"{rate:g}"
    if row["relative_time"] is not None:
        found["relative time"] = f"{row['relative_time']:.2f}"
    if seconds:
        found["minutes"] = f"{sum(seconds) / len(seconds) / 60:.1f}"
    for name in dict.fromkeys(name for other in rows for name in other["scores"]):
        score = row["scores"].get(name)
        if score is None:
            found[name] = None if row["seeds"] else "diverged"
            continue
        found[name] = score["values"]
        if not in_time(row):  # as text it is not compared: the best of a column is in bold
            found[name] = mean_std(score["values"])
        if score["published"] is not None:
            found[f"{name}, published"] = f"{score['published']:.1f}"
    if any(other["diverged"] for other in rows):
        total = len(row["diverged"]) + len(row["seeds"])
        found["diverged"] = f"{len(row['diverged'])} of {total}"
    return found


def _published_rows(table: str) -> Iterator[dict[str, str]]:
    """Every published row of a table, with the command that makes it at the full scale."""
    for row in shown(table):
        cells = {"method": row.method, "epochs": text(row.epochs)}
        cells |= dict(zip(TABLES[table].columns, map(text, row.values), strict=True))
        yield cells | {"made by": command_of(table, row)}


# -- files for programs -----------------------------------------------------------------------------------------------


def _result(
    plan: Plan, jobs: Sequence[Job], rows: Sequence[Row], notes: Sequence[str]
) -> dict[str, Any]:
    """The rows with what was asked for, as JSON. Every run has a file of its own."""
    study = plan.study
    request = plan.request
    return {
        "experiment": study.name,
        "question": study.question,
        "method": study.method,
        "scale": study.scale,
        "data": request.data,
        "measured_on": [target.source for target in plan.targets],
        "seeds": sorted({job.experiment.seed for job in jobs}),
        "fields": dict(request.fields),
        "summary": rows,
        "notes": list(notes),
        "search": [
            {"arm": job.arm.key, "rate": job.rate, "score": score} for job, score in plan.scores()
        ],
        "runs": [job.name for job in jobs if not job.missing(request.folder)],
    }


# -- notes ------------------------------------------------------------------------------------------------------------


def notes_of(plan: Plan, jobs: Sequence[Job], rows: Sequence[Row]) -> list[str]:
    """Notes for readers of the tables."""
    out = plan.request.folder
    done = [job for job in jobs if not job.missing(out)]
    notes = []
    if len(done) < len(jobs):
        notes.append(f"Unfinished: {len(done)} of {len(jobs)} runs are done.")
    notes += plan.study.notes
    cautions = set()
    for job in done:
        for _, result in job.measured(out):
            compared = published.beside(result)
            if compared is not None and compared.caution:
                cautions.add(f"{compared.title}: {compared.caution}.")
    notes += sorted(cautions)
    notes += dict.fromkeys(note for row in rows for note in _of_row(row))
    notes += _of_rates(plan)
    if any(row["relative_time"] is not None for row in rows):
        notes.append(
            "Relative time is counted: passes of the network in a step. Minutes are measured."
        )
    return notes


def _of_row(row: Row) -> Iterator[str]:
    """Whatever keeps a row from being compared with the others."""
    where = f"{row['arm']}, {counted(row['epochs'], 'epoch')}"
    lost = row["diverged"]
    if not in_time(row):
        off = f"whole epochs come to {row['relative_time']:.2f} of the time"
        yield f"{where}: {off}, so it is not compared at equal time; more --epochs come closer."
    if lost:
        total = counted(len(lost) + len(row["seeds"]), "seed")
        others = ", numbers are those of the others" if row["seeds"] else ""
        which = f"{len(lost)} of {total} diverged ({', '.join(map(str, lost))})"
        rate = f"at rate {row['learning_rate']:g}"
        yield f"{where}: {which} {rate}{others}; --rates gives lower ones."


def _of_rates(plan: Plan) -> Iterator[str]:
    """Notes on the choice of learning rates, and on arms whose best rate was the smallest or the largest."""
    best = plan.rates()
    scores = plan.scores()
    edges: dict[str, list[str]] = {}
    for arm in plan.study.arms:
        tried = [job.rate for job, _ in scores if job.arm.key == arm.key]
        if len(tried) > 1 and best[arm.key] in (min(tried), max(tried)):
            end = "smallest" if best[arm.key] == min(tried) else "largest"
            edges.setdefault(f"the {end} rate, {best[arm.key]:g}", []).append(arm.name)
    for edge, arms in edges.items():
        yield f"{', '.join(arms)} chose {edge}: a better one may lie beyond."
    if scores:
        epochs = sorted({job.experiment.epochs for job, _ in scores})
        lengths = " or ".join(counted(number, "epoch") for number in epochs)
        best_of = f"the learning rate that runs of {lengths} found best on held-out images"
        yield f"Each arm has {best_of}; test images were scored with that one alone."
    elif plan.study.scale == "small":
        yield "No learning rate was searched for: all arms have the one given, or else their recipes'."
