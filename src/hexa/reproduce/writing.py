"""The rows of a study as people and programs read them: a page, a CSV file, JSON, and notes on what to mind."""

from __future__ import annotations

import csv
import io
import platform
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hexa import published
from hexa.reporting.tables import Cell, counted, format_duration, markdown_table, mean_and_std, mean_std
from hexa.reproduce.collecting import EPOCHS, TIME, Row, columns_of
from hexa.reproduce.plan import Costs, Request, Stored, best_of, search_score
from hexa.reproduce.studies import Study

#: By how much the runs' times may differ from the benchmark's before a note says so.
MISTIMED = 0.25


def table_rows(rows: Sequence[Row], comparison: str, until: float | None = None) -> list[dict[str, Cell]]:
    """The rows of one comparison for a Markdown table; a mean is of the seeds that did not diverge.

    until: the accuracy that runs were ended at; then the table says how many reached it, and when.
    """
    these = [row for row in rows if row.comparison == comparison]
    shown = []
    for row in these:
        cells: dict[str, Cell] = {"arm": row.arm.name, "epochs": str(row.epochs), "learning rate": f"{row.rate:g}"}
        if until is not None:
            cells = {"arm": row.arm.name, "learning rate": f"{row.rate:g}", **_until(row)}
        if row.relative_time is not None:
            cells["relative time"] = f"{row.relative_time:.2f}"
        for name in columns_of(these):
            scores = row.scores.get(name)
            # as text it is not compared: the best of a column is in bold
            cells[name] = mean_std(scores) if scores and not row.in_time else scores if row.seeds else "diverged"
            if name in row.published:
                cells[f"{name}, published"] = f"{row.published[name]:.1f}"
        if any(other.diverged for other in these):
            cells["diverged"] = f"{len(row.diverged)} of {len(row.diverged) + len(row.seeds)}"
        if until is None and (row.minutes or row.interrupted):
            took = format_duration(60 * statistics.fmean(row.minutes or row.interrupted))
            cells["one run took"] = took if row.minutes else f"{took} *"
        shown.append(cells)
    return shown


def markdown(study: Study, request: Request, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The whole result as a page."""
    seeds = len({seed for row in rows for seed in (*row.seeds, *row.diverged)})
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed, so no spread"
    parts = [
        f"# {study.name}, {study.method}, {study.scale} scale\n\n{sentence(study.question)}\n",
        f"Data: `{request.data}`; {spread}. Percent.\n",
    ]
    for comparison in (EPOCHS, TIME):
        first = next((row for row in rows if row.comparison == comparison), None)
        if first is not None:
            head = "By epochs" if len(study.lengths) > 1 else f"At {comparison}"
            if request.until is not None:
                at_most = f"{counted(first.epochs, 'epoch')} at most"
                head = f"Until k-NN of held-out images reaches {request.until:g} %, {at_most}"
            if comparison == TIME:
                head += f": the time of {counted(first.epochs, 'epoch')} of {study.arms[0].name}"
            parts.append(f"## {head}\n\n{markdown_table(table_rows(rows, comparison, request.until))}")
    if any(row.published for row in rows):
        parts.append("Published: ResNet-50 pre-trained on ImageNet, so beside, not against, a smaller scale.\n")
    parts += [f"- {note}" for note in notes]
    return "\n".join(parts) + "\n"


def _until(row: Row) -> dict[str, Cell]:
    """How many runs reached the accuracy, and after how long."""
    count, total = len(row.reached), len(row.seeds) + len(row.diverged)
    epochs, seconds = zip(*row.reached, strict=True) if row.reached else ((), ())
    after = {"after epochs": epochs, "after seconds": seconds}
    texts = {name: mean_std(of) if of else "–" for name, of in after.items()}
    if seconds and row.interrupted:
        texts["after seconds"] += " *"  # a sum over sessions, as a note says
    return {"reached": f"{count} of {total}", **texts}


def sentence(text: str) -> str:
    """With a stop at its end."""
    return text if text.endswith("?") else f"{text}."


def csv_text(rows: Sequence[Row]) -> str:
    """One line per arm, comparison and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = "arm comparison epochs learning_rate metric mean std seeds published diverged relative_time"
    writer.writerow(head.split())
    for row in rows:
        arm = [row.arm.name, row.comparison, row.epochs, f"{row.rate:g}"]
        rest = [len(row.diverged), "" if row.relative_time is None else f"{row.relative_time:.4f}"]
        for name, values in row.scores.items():
            mean, std = mean_and_std(values)
            spread = "" if std is None else f"{std:.4f}"
            writer.writerow([*arm, name, f"{mean:.4f}", spread, len(values), row.published.get(name, ""), *rest])
        if not row.scores:
            writer.writerow([*arm, "", "", "", 0, "", *rest])
    return text.getvalue()


def result(study: Study, request: Request, rows: Sequence[Row], costs: Costs | None, search: Sequence[Stored],
           runs: Sequence[Stored], notes: Sequence[str]) -> dict[str, Any]:  # fmt: skip
    """Everything, as JSON: the summary first, then every single run."""
    return {
        "experiment": study.name,
        "question": study.question,
        "method": study.method,
        "scale": study.scale,
        "data": request.data,
        "measured_on": [target.source for target in request.targets],
        "seeds": list(request.seeds),
        **({} if request.until is None else {"until": request.until}),
        "fields": dict(request.fields),
        "machine": {"processor": platform.processor() or platform.machine(), "torch": torch.__version__},
        "seconds_per_image": costs,
        "summary": [_summary(row) for row in rows],
        "notes": list(notes),
        **({} if request.shared else {"search": search_scores(search)}),
        "runs": [_brief(run) for run in runs],
    }


def search_scores(search: Iterable[Stored]) -> list[dict[str, Any]]:
    """What every rate of every arm reached on held-out training images, as JSON."""
    return [{key: job[key] for key in ("arm", "epochs", "rate")} | {"score": search_score(job)} for job in search]


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
        "diverged": list(row.diverged),
        "minutes": list(row.minutes),
        "minutes_of_interrupted_runs": list(row.interrupted),
        **({"reached": [{"epochs": epochs, "seconds": time} for epochs, time in row.reached]} if row.reached else {}),
        "scores": scores,
    }


def _brief(run: Stored) -> dict[str, Any]:
    kept = ("name", "arm", "epochs", "rate", "seed", "pretrain_seconds", "environment")
    of_result = ("title", "protocol", "metrics", "data", "seed", "notes")
    return {key: run[key] for key in kept} | {
        "interruptions": run.get("interruptions"),
        "diverged": run.get("diverged"),
        "results": [
            {key: result[key] for key in of_result} | {"commit": result.get("commit")} for result in run["results"]
        ],
    }


# -- notes ------------------------------------------------------------------------------------------------------------


def notes_of(
    study: Study, request: Request, rows: Sequence[Row], search: Sequence[Stored], runs: Sequence[Stored]
) -> list[str]:
    """What a reader of the tables should know."""
    compared = [published.beside(result) for run in runs for result in run["results"]]
    notes = [*study.notes, *sorted({f"{one.title}: {one.caution}." for one in compared if one and one.caution})]
    notes += [
        f"{row.arm.name}: whole epochs come to {row.relative_time:.2f} of the time it should have, so it is out of the "
        "comparison at equal time; more --epochs come closer."
        for row in rows
        if not row.in_time
    ]
    notes += _mistimed(rows)
    notes += dict.fromkeys(_interrupted(row) for row in rows if row.interrupted)
    notes += dict.fromkeys(_divergence(row) for row in rows if row.diverged)
    notes += _at_the_edge(study, search)
    if search:
        notes.append(
            f"Each arm has the learning rate that runs of {counted(search[0]['epochs'], 'epoch')} found best on "
            "held-out training images; test images were scored with that one alone."
        )
    elif study.scale == "small" and request.shared is None:
        notes.append("No learning rate was searched for: all arms have the one given.")
    if any(row.reached for row in rows):
        notes.append("Seconds are those of training alone. No arm is trained on the held-out images.")
    if any(row.relative_time is not None for row in rows):
        notes.append("Relative time: by a benchmark of steps and views on this machine, before the runs.")
    return notes


def _at_the_edge(study: Study, search: Sequence[Stored]) -> list[str]:
    """Arms whose best learning rate was the smallest or the largest that was tried."""
    chosen: dict[str, list[str]] = {}
    for arm in study.arms:
        jobs = [job for job in search if job["arm"] == arm.key]
        rates = sorted(job["rate"] for job in jobs)
        best = best_of(jobs) if jobs else None
        if best in (*rates[:1], *rates[-1:]):
            edge = f"the {'smallest' if best == rates[0] else 'largest'} rate, {best:g}"
            chosen.setdefault(edge, []).append(arm.name)
    return [f"{', '.join(arms)} chose {edge}: a better one may lie beyond." for edge, arms in chosen.items()]


def _mistimed(rows: Sequence[Row]) -> list[str]:
    """Arms whose runs took another share of the plain ones' time than the benchmark says."""
    longest: dict[str, tuple[str, float, float]] = {}
    for row in rows:
        if row.comparison == EPOCHS and row.minutes and row.relative_time:
            longest.setdefault(row.arm.key, (row.arm.name, statistics.median(row.minutes), row.relative_time))
    (plain, plain_took, plain_said), *others = longest.values() or [("", 1.0, 1.0)]
    return [
        f"{name}: its runs took {took / plain_took:.2f} of the time of those of {plain}, where the benchmark says "
        f"{said / plain_said:.2f}, so equal time may be off."
        for name, took, said in others
        if abs((took / plain_took) / (said / plain_said) - 1) > MISTIMED
    ]


def _interrupted(row: Row) -> str:
    count, total = len(row.interrupted), len(row.interrupted) + len(row.minutes)
    of_others = "the time is of the others"
    sums = "the time (*) is a sum over sessions, not a measurement"
    return (
        f"{row.arm.name}, {counted(row.epochs, 'epoch')}: {count} of {counted(total, 'run')} "
        f"{'was' if count == 1 else 'were'} interrupted and resumed; {of_others if row.minutes else sums}."
    )


def _divergence(row: Row) -> str:
    seeds, count = ", ".join(map(str, row.diverged)), len(row.diverged) + len(row.seeds)
    return (
        f"{row.arm.name}, {counted(row.epochs, 'epoch')}: {len(row.diverged)} of {counted(count, 'seed')} diverged "
        f"({seeds}) at rate {row.rate:g}{', numbers are those of the others' if row.seeds else ''}; "
        "--rates gives lower ones."
    )
