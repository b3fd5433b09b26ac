"""The rows of a study as people and programs read them: a page, a CSV file, JSON, and notes on what to mind."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from hexa.reporting.tables import Cell, counted, markdown_table, mean_std, text
from hexa_paper import published
from hexa_paper.plan import Plan, Stored, options_taught, search_score
from hexa_paper.rows import EPOCHS, TIME, Outcome, columns_of, in_time
from hexa_paper.studies import EXPERIMENTS

#: To four digits in a CSV file.
_ROUNDED = {"mean", "std", "relative_time"}


def cells(row: Outcome, rows: Sequence[Outcome]) -> dict[str, Cell]:
    """A row of a Markdown table, among the rows of its comparison; a mean is of the seeds that did not diverge."""
    found: dict[str, Cell] = {"arm": row["arm"], "epochs": str(row["epochs"])}
    found["learning rate"] = f"{row['learning_rate']:g}"
    if row["relative_time"] is not None:
        found["relative time"] = f"{row['relative_time']:.2f}"
    for name in columns_of(rows):
        score = row["scores"].get(name)
        found[name] = (
            ("diverged" if not row["seeds"] else None) if score is None else score["values"]
        )
        if score and not in_time(row):
            found[name] = mean_std(
                score["values"]
            )  # as text it is not compared: the best of a column is in bold
        if score and score["published"] is not None:
            found[f"{name}, published"] = f"{score['published']:.1f}"
    if any(other["diverged"] for other in rows):
        total = len(row["diverged"]) + len(row["seeds"])
        found["diverged"] = f"{len(row['diverged'])} of {total}"
    return found


def markdown(plan: Plan, rows: Sequence[Outcome], notes: Sequence[str]) -> str:
    """The whole result as a page."""
    study = plan.study
    seeds = len({seed for row in rows for seed in (*row["seeds"], *row["diverged"])})
    spread = (
        f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed, so no spread"
    )
    parts = [
        f"# {study.name}, {study.method}, {study.scale} scale\n\n{sentence(study.question)}\n",
        f"Data: `{plan.request.data}`; {spread}. Percent.\n",
    ]
    for comparison in (EPOCHS, TIME):
        if these := [row for row in rows if row["comparison"] == comparison]:
            length = counted(these[0]["epochs"], "epoch")
            head = "By epochs" if len(study.lengths) > 1 else f"At {comparison}"
            if comparison == TIME:
                head += f": the time of {length} of {study.arms[0].name}"
            parts.append(f"## {head}\n\n{markdown_table([cells(row, these) for row in these])}")
    if any(score["published"] is not None for row in rows for score in row["scores"].values()):
        of = EXPERIMENTS[study.name].get("published", "ResNet-50 pre-trained on ImageNet")
        parts.append(f"Published: {of}, so beside, not against, a smaller scale.\n")
    if listed := list(published_rows(plan)):
        parts.append(
            f"## Published, and what makes ours\n\n{published.ROBUST.title}.\n\n{markdown_table(listed)}"
        )
    return "\n".join([*parts, *(f"- {note}" for note in notes)]) + "\n"


def sentence(said: str) -> str:
    """With a stop at its end."""
    return said if said.endswith("?") else f"{said}."


def published_rows(plan: Plan) -> Iterator[dict[str, str]]:
    """Every published row of a leaderboard with the command that trains ours, or a dash and why there is none.

    Nothing for other studies.
    """
    absent = EXPERIMENTS[plan.study.name].get("absent", {})
    request = plan.request
    jobs = {
        job.arm.published[0]: job
        for job in plan.final_jobs(plan.best_rates([]))[::-1]
        if job.arm.published
    }
    for row in published.ROBUST.rows if absent else ():
        known = dict(zip(published.ROBUST.columns, map(text, row.values), strict=True))
        ours = f"– {absent.get(row.method)}"
        if job := jobs.get(row.method):
            ours = f"hexa pretrain {job.arm.recipe} --data {request.data} --epochs {job.experiment.epochs}"
            ours += options_taught(job, request.folder / "runs")
        yield {"published": row.method, **known, "ours": ours}


def csv_text(rows: Sequence[Outcome]) -> str:
    """One line per arm, comparison and column."""
    written = io.StringIO()
    head = (
        "arm comparison epochs learning_rate metric mean std seeds published diverged relative_time"
    )
    writer = csv.DictWriter(written, head.split(), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        for metric, score in (row["scores"] or {"": {"values": ()}}).items():
            line = {**row, **score, "metric": metric, "learning_rate": f"{row['learning_rate']:g}"}
            line |= {name: f"{line[name]:.4f}" for name in _ROUNDED if line.get(name) is not None}
            writer.writerow(
                {**line, "seeds": len(score["values"]), "diverged": len(row["diverged"])}
            )
    return written.getvalue()


def result(
    plan: Plan,
    rows: Sequence[Outcome],
    search: Sequence[Stored],
    runs: Sequence[Stored],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Everything, as JSON: the summary first, then every single run."""
    study = plan.study
    request = plan.request
    of_run = (
        "name",
        "arm",
        "epochs",
        "rate",
        "seed",
        "pretrain_seconds",
        "environment",
        "interruptions",
        "diverged",
    )
    of_result = ("title", "protocol", "metrics", "data", "seed", "notes", "commit")
    results = [
        [{key: result.get(key) for key in of_result} for result in run["results"]] for run in runs
    ]
    briefly = [{key: run.get(key) for key in of_run} for run in runs]
    return {
        "experiment": study.name,
        **{key: getattr(study, key) for key in ("question", "method", "scale")},
        "data": request.data,
        "measured_on": [target.source for target in request.targets],
        "seeds": list(request.seeds),
        "fields": dict(request.fields),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
        },
        "seconds_per_image": plan.costs,
        "summary": rows,
        "notes": list(notes),
        **({} if request.shared else {"search": search_scores(search)}),
        "runs": [run | {"results": of} for run, of in zip(briefly, results, strict=True)],
    }


def search_scores(search: Iterable[Stored]) -> list[dict[str, Any]]:
    """What every rate of every arm reached on held-out training images, as JSON."""
    return [
        {key: job[key] for key in ("arm", "epochs", "rate")} | {"score": search_score(job)}
        for job in search
    ]


# -- notes ------------------------------------------------------------------------------------------------------------


def notes_of(
    plan: Plan, rows: Sequence[Outcome], search: Sequence[Stored], runs: Sequence[Stored]
) -> list[str]:
    """What a reader of the tables should know."""
    compared = [published.beside(result) for run in runs for result in run["results"]]
    notes = [
        *plan.study.notes,
        *sorted({f"{one.title}: {one.caution}." for one in compared if one and one.caution}),
    ]
    notes += dict.fromkeys(note for row in rows for note in _of_row(row))
    notes += _at_the_edge(plan, search)
    if search:
        best = f"the learning rate that runs of {counted(search[0]['epochs'], 'epoch')} found best"
        alone = "test images were scored with that one alone"
        notes.append(f"Each arm has {best} on held-out training images; {alone}.")
    elif plan.study.scale == "small" and not plan.request.shared:
        notes.append(
            "No learning rate was searched for: all arms have the one given, or else their recipes'."
        )
    if any(row["relative_time"] is not None for row in rows):
        notes.append(
            "Relative time: by a benchmark of steps and views on this machine, before the runs."
        )
    return notes


def _of_row(row: Outcome) -> Iterator[str]:
    """Whatever keeps a row from being compared with the others."""
    where = f"{row['arm']}, {counted(row['epochs'], 'epoch')}"
    lost = row["diverged"]
    if not in_time(row):
        remedy = "so it is out of the comparison at equal time; more --epochs come closer."
        yield f"{row['arm']}: whole epochs come to {row['relative_time']:.2f} of the time it should have, {remedy}"
    if lost:
        total = counted(len(lost) + len(row["seeds"]), "seed")
        others = ", numbers are those of the others" if row["seeds"] else ""
        which = f"{len(lost)} of {total} diverged ({', '.join(map(str, lost))}) at rate {row['learning_rate']:g}"
        yield f"{where}: {which}{others}; --rates gives lower ones."


def _at_the_edge(plan: Plan, search: Sequence[Stored]) -> list[str]:
    """Arms whose best learning rate was the smallest or the largest that was tried."""
    best = plan.best_rates(search)
    chosen = dict[str, list[str]]()
    for arm in plan.study.arms:
        tried = [job["rate"] for job in search if job["arm"] == arm.key]
        for end, name in {max(tried): "largest", min(tried): "smallest"}.items() if tried else ():
            if best[arm.key] == end:
                chosen.setdefault(f"the {name} rate, {end:g}", []).append(arm.name)
    return [
        f"{', '.join(arms)} chose {edge}: a better one may lie beyond."
        for edge, arms in chosen.items()
    ]
