"""The rows of a study as people and programs read them: a page, a CSV file, JSON, and notes on what to mind."""

from __future__ import annotations

import csv
import io
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hexa import published
from hexa.reporting.tables import Cell, counted, format_duration, markdown_table, mean_std
from hexa_paper.plan import Costs, Stored, best_rates, search_score
from hexa_paper.request import Request
from hexa_paper.rows import EPOCHS, TIME, Outcome, columns_of, in_time
from hexa_paper.studies import Study

#: By how much the runs' times may differ from the benchmark's before a note says so.
MISTIMED = 0.25
#: To four digits in a CSV file.
_ROUNDED = {"mean", "std", "relative_time"}


def cells(row: Outcome, rows: Sequence[Outcome], until: float | None = None) -> dict[str, Cell]:
    """A row of a Markdown table, among the rows of its comparison; a mean is of the seeds that did not diverge.

    until: the accuracy that runs were ended at; then the table says how many reached it, and when.
    """
    interrupted, diverged = row["minutes_of_interrupted_runs"], len(row["diverged"])
    total = diverged + len(row["seeds"])
    found: dict[str, Cell] = {"arm": row["arm"], "epochs": str(row["epochs"])} if until is None else {"arm": row["arm"]}
    found["learning rate"] = f"{row['learning_rate']:g}"
    if until is not None:
        reached = row.get("reached", [])
        epochs, seconds = (mean_std([one[name] for one in reached]) for name in ("epochs", "seconds"))
        found |= {"reached": f"{len(reached)} of {total}", "after epochs": epochs}
        # a sum over sessions, as a note says
        found["after seconds"] = seconds + (" *" if reached and interrupted else "")
    if row["relative_time"] is not None:
        found["relative time"] = f"{row['relative_time']:.2f}"
    for name in columns_of(rows):
        score = row["scores"].get(name)
        found[name] = ("diverged" if not row["seeds"] else None) if score is None else score["values"]
        if score and not in_time(row):
            found[name] = mean_std(score["values"])  # as text it is not compared: the best of a column is in bold
        if score and score["published"] is not None:
            found[f"{name}, published"] = f"{score['published']:.1f}"
    if any(other["diverged"] for other in rows):
        found["diverged"] = f"{diverged} of {total}"
    if until is None and (row["minutes"] or interrupted):
        took = format_duration(60 * statistics.fmean(row["minutes"] or interrupted))
        found["one run took"] = took if row["minutes"] else f"{took} *"
    return found


def markdown(study: Study, request: Request, rows: Sequence[Outcome], notes: Sequence[str]) -> str:
    """The whole result as a page."""
    seeds = len({seed for row in rows for seed in (*row["seeds"], *row["diverged"])})
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed, so no spread"
    parts = [
        f"# {study.name}, {study.method}, {study.scale} scale\n\n{sentence(study.question)}\n",
        f"Data: `{request.data}`; {spread}. Percent.\n",
    ]
    for comparison in (EPOCHS, TIME):
        these = [row for row in rows if row["comparison"] == comparison]
        if these:
            length = counted(these[0]["epochs"], "epoch")
            head = "By epochs" if len(study.lengths) > 1 else f"At {comparison}"
            if request.until is not None:
                head = f"Until k-NN of held-out images reaches {request.until:g} %, {length} at most"
            if comparison == TIME:
                head += f": the time of {length} of {study.arms[0].name}"
            table = markdown_table([cells(row, these, request.until) for row in these])
            parts.append(f"## {head}\n\n{table}")
    if any(score["published"] is not None for row in rows for score in row["scores"].values()):
        parts.append("Published: ResNet-50 pre-trained on ImageNet, so beside, not against, a smaller scale.\n")
    parts += [f"- {note}" for note in notes]
    return "\n".join(parts) + "\n"


def sentence(text: str) -> str:
    """With a stop at its end."""
    return text if text.endswith("?") else f"{text}."


def csv_text(rows: Sequence[Outcome]) -> str:
    """One line per arm, comparison and column."""
    text = io.StringIO()
    head = "arm comparison epochs learning_rate metric mean std seeds published diverged relative_time"
    writer = csv.DictWriter(text, head.split(), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        for metric, score in (row["scores"] or {"": {"values": ()}}).items():
            line = {**row, **score, "metric": metric, "learning_rate": f"{row['learning_rate']:g}"}
            line |= {name: f"{line[name]:.4f}" for name in _ROUNDED if line.get(name) is not None}
            writer.writerow({**line, "seeds": len(score["values"]), "diverged": len(row["diverged"])})
    return text.getvalue()


def result(study: Study, request: Request, rows: Sequence[Outcome], costs: Costs | None, search: Sequence[Stored],
           runs: Sequence[Stored], notes: Sequence[str]) -> dict[str, Any]:  # fmt: skip
    """Everything, as JSON: the summary first, then every single run."""
    return {
        "experiment": study.name,
        **{key: getattr(study, key) for key in ("question", "method", "scale")},
        "data": request.data,
        "measured_on": [target.source for target in request.targets],
        "seeds": list(request.seeds),
        **({} if request.until is None else {"until": request.until}),
        "fields": dict(request.fields),
        "machine": {"processor": platform.processor() or platform.machine(), "torch": torch.__version__},
        "seconds_per_image": costs,
        "summary": rows,
        "notes": list(notes),
        **({} if request.shared else {"search": search_scores(search)}),
        "runs": [_brief(run) for run in runs],
    }


def search_scores(search: Iterable[Stored]) -> list[dict[str, Any]]:
    """What every rate of every arm reached on held-out training images, as JSON."""
    return [{key: job[key] for key in ("arm", "epochs", "rate")} | {"score": search_score(job)} for job in search]


def _brief(run: Stored) -> dict[str, Any]:
    of_run = ("name", "arm", "epochs", "rate", "seed", "pretrain_seconds", "environment", "interruptions", "diverged")
    of_result = ("title", "protocol", "metrics", "data", "seed", "notes", "commit")
    results = [{key: result.get(key) for key in of_result} for result in run["results"]]
    return {key: run.get(key) for key in of_run} | {"results": results}


# -- notes ------------------------------------------------------------------------------------------------------------


def notes_of(
    study: Study, request: Request, rows: Sequence[Outcome], search: Sequence[Stored], runs: Sequence[Stored]
) -> list[str]:
    """What a reader of the tables should know."""
    compared = [published.beside(result) for run in runs for result in run["results"]]
    notes = [*study.notes, *sorted({f"{one.title}: {one.caution}." for one in compared if one and one.caution})]
    notes += [
        f"{row['arm']}: whole epochs come to {row['relative_time']:.2f} of the time it should have, so it is out of "
        "the comparison at equal time; more --epochs come closer."
        for row in rows
        if not in_time(row)
    ]
    notes += _mistimed(rows)
    notes += dict.fromkeys(_interrupted(row) for row in rows if row["minutes_of_interrupted_runs"])
    notes += dict.fromkeys(_divergence(row) for row in rows if row["diverged"])
    notes += _at_the_edge(study, best_rates(study, request, search), search)
    if search:
        notes.append(
            f"Each arm has the learning rate that runs of {counted(search[0]['epochs'], 'epoch')} found best on "
            "held-out training images; test images were scored with that one alone."
        )
    elif study.scale == "small" and not request.shared:
        notes.append("No learning rate was searched for: all arms have the one given.")
    if any("reached" in row for row in rows):
        notes.append("Seconds are those of training alone. No arm is trained on the held-out images.")
    if any(row["relative_time"] is not None for row in rows):
        notes.append("Relative time: by a benchmark of steps and views on this machine, before the runs.")
    return notes


def _at_the_edge(study: Study, best: Mapping[str, float], search: Sequence[Stored]) -> list[str]:
    """Arms whose best learning rate was the smallest or the largest that was tried."""
    chosen: dict[str, list[str]] = {}
    for arm in study.arms:
        tried = [job["rate"] for job in search if job["arm"] == arm.key]
        for end, name in {max(tried): "largest", min(tried): "smallest"}.items() if tried else ():
            if best[arm.key] == end:
                chosen.setdefault(f"the {name} rate, {end:g}", []).append(arm.name)
    return [f"{', '.join(arms)} chose {edge}: a better one may lie beyond." for edge, arms in chosen.items()]


def _mistimed(rows: Sequence[Outcome]) -> list[str]:
    """Arms whose runs took another share of the plain ones' time than the benchmark says."""
    longest: dict[str, tuple[str, float, float]] = {}
    for row in rows:
        if row["comparison"] == EPOCHS and row["minutes"] and row["relative_time"]:
            longest.setdefault(row["key"], (row["arm"], statistics.median(row["minutes"]), row["relative_time"]))
    (plain, plain_took, plain_said), *others = longest.values() or [("", 1.0, 1.0)]
    return [
        f"{name}: its runs took {took / plain_took:.2f} of the time of those of {plain}, where the benchmark says "
        f"{said / plain_said:.2f}, so equal time may be off."
        for name, took, said in others
        if abs((took / plain_took) / (said / plain_said) - 1) > MISTIMED
    ]


def _some(row: Outcome, few: Sequence[Any], others: Sequence[Any], what: str) -> str:
    """How many of the runs or seeds of a row something happened to."""
    total = counted(len(few) + len(others), what)
    return f"{row['arm']}, {counted(row['epochs'], 'epoch')}: {len(few)} of {total}"


def _interrupted(row: Outcome) -> str:
    few, others = row["minutes_of_interrupted_runs"], row["minutes"]
    time = "the time is of the others" if others else "the time (*) is a sum over sessions, not a measurement"
    return f"{_some(row, few, others, 'run')} {'was' if len(few) == 1 else 'were'} interrupted and resumed; {time}."


def _divergence(row: Outcome) -> str:
    others = ", numbers are those of the others" if row["seeds"] else ""
    lost = f"{_some(row, row['diverged'], row['seeds'], 'seed')} diverged ({', '.join(map(str, row['diverged']))})"
    return f"{lost} at rate {row['learning_rate']:g}{others}; --rates gives lower ones."
