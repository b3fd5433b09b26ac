"""The page "The paper beside our runs": every published row, the command that makes it, and what small runs found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hexa.reporting.tables import Cell, counted, format_duration, markdown_table, mean_std
from hexa_paper import published
from hexa_paper.published import Row
from hexa_paper.rows import metrics_of, rows_of
from hexa_paper.studies import (
    ABSENT,
    EXPERIMENTS,
    HEAD,
    METHODS,
    TABLES,
    VERSIONS,
    Arm,
    Measure,
    arms_of,
    evaluated,
    learned,
    shown,
)
from hexa_paper.work import Work

_IMAGENET = "--data folder:PATH/imagenet"
Kept = Callable[[Measure, int], Mapping[str, Any] | None]


# -- from studies to a record ----------------------------------------------------------------------------------------


def row_of(table: str, arm: Arm) -> Row | None:
    """The row of a table that an arm of the small scale stands beside: its own, or else the first of its method.

    Lengths and batches are not those of the rows there.
    """
    if arm.published is None:
        return None
    rows = shown(table)
    own = published.find(rows, *arm.published)
    return own or next(
        (row for row in rows if row.epochs and _name(row.method) == _name(arm.published[0])), None
    )


def _name(method: str) -> str:
    """Without its batch."""
    return method.partition(" (B=")[0]


def part(
    work: Work, sources: Mapping[str, str], failed: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    """What a study found, as JSON: a record of every arm, with the reason where there is less than was planned."""
    jobs = work.final
    study = work.study
    runs = work.stored(jobs)
    rows = rows_of(work, runs)
    arms = []
    for arm in study.arms:
        own = [row for row in rows if row["key"] == arm.key]
        planned = sum(job.arm.key == arm.key for job in jobs)
        done = sum(run["arm"] == arm.key for run in runs)
        reason = failed.get((work.out.name, arm.key), "")
        if done < planned:
            reason = f"not finished: {done} of {counted(planned, 'run')}" + (
                f"; {reason}" if reason else ""
            )
        if diverged := sorted({seed for row in own for seed in row["diverged"]}):
            reason = f"diverged with seeds {', '.join(map(str, diverged))}"
        beside = row_of(study.name, arm) if study.name in TABLES else None
        results = [
            {"epochs": row["epochs"], "rate": row["learning_rate"], "seeds": row["seeds"]}
            | {
                "scores": {
                    _named(name, sources): score["values"] for name, score in row["scores"].items()
                }
            }
            for row in own
        ]
        place = beside and [beside.method, beside.epochs]
        arms.append(
            {
                "arm": arm.name,
                "recipe": arm.recipe,
                "row": place,
                "reason": reason,
                "results": results,
            }
        )
    return {"experiment": study.name, "method": study.method, "arms": arms}


def untrained(
    work: Work, sources: Mapping[str, str], kept: Kept, learner: str = ""
) -> dict[str, Any]:
    """The record of random weights, measured as the arms of a table, or by a learner, whose row of table 3 is given.

    kept: what an evaluation with a seed found.
    """
    study = work.study
    job = work.final[0]
    request = work.request
    titled = list(
        zip([measure["title"] for measure in job.record["measures"]], job.measures, strict=True)
    )
    if learner:
        titled = [
            (one.title.partition(",")[0], one)
            for one in learned(learner, request.epochs or 1, request)
        ]
    scores: dict[str, list[float]] = {}
    for seed in request.seeds:
        for title, measure in titled:
            if (result := kept(measure, seed)) is not None:
                for metric, column in metrics_of(study, {**result, "title": title}).items():
                    scores.setdefault(_named(column, sources), []).append(result["metrics"][metric])
    return {
        "arm": learner or "random weights",
        "row": {"table3": [learner or "Supervised", None], "table5": ["Random init", None]}.get(
            study.name
        ),
        "reason": "" if scores else "not finished",
        "results": [{"epochs": 0, "scores": scores}] if scores else [],
    }


def _named(column: str, sources: Mapping[str, str]) -> str:
    """A column without the paths of its images."""
    for source, name in sources.items():
        column = column.replace(f" on {source}", f" on {name}")
    return column


# -- from a record to a page ------------------------------------------------------------------------------------------


def command_of(table: str, row: Row) -> str:
    """The command that makes a published row at the full scale, or pre-trains its network; else why there is none."""
    made = evaluated(row.method, table)
    if made or (row.method in ABSENT and row.epochs is None):
        return made or str(ABSENT[row.method])
    method = VERSIONS.get(row.method, row.method)
    for arm in (arm for one in METHODS for arm in arms_of(one, "full")):
        assert arm.published is not None
        of_another = arm.published == (method, row.epochs) and method != row.method
        if of_another or published.find(shown(table), *arm.published) == row:
            remark = published.REMARKS.get(arm.recipe) if table == "table1" else ""
            remark = f"{method}, which the study leaves out" if of_another else remark
            return f"`hexa pretrain {arm.recipe} {_IMAGENET}`" + (f" ({remark})" if remark else "")
    return "no recipe"


def page(record: Mapping[str, Any]) -> str:
    """The whole page. record: what `hexa reproduce all` found."""
    text = ["# The paper beside our runs\n", _head(record)]
    for table, given in (
        (name, one["given"]) for name, one in EXPERIMENTS.items() if "given" in one
    ):
        text.append(f"## Table {table[-1]}: {TABLES[table].title}\n")
        command = f"`hexa reproduce {table} --method moco --scale full {given}` (or {', '.join(list(METHODS)[1:])})"
        text.append(
            f"Rows that are pre-trained, with all their evaluations, at the full scale: {command}.\n"
        )
        text.append(markdown_table(list(_rows(table, record))))
    text.append("## Figures\n\nOf these the paper prints no numbers.\n")
    for name in [name for name in EXPERIMENTS if name not in TABLES]:
        for part in record["parts"].values():
            if part["experiment"] == name:
                command = (
                    f"hexa reproduce {name} --method {part['method']} --scale full {_IMAGENET}"
                )
                question = EXPERIMENTS[name]["question"].rstrip(".?")
                text.append(f"### {name}, {part['method']}\n\n{question}: `{command}`\n")
                text.append(markdown_table([cells for arm in part["arms"] for cells in _arm(arm)]))
    return "\n".join(text)


def _head(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    arms = [arm for part in record["parts"].values() for arm in part["arms"]]
    missing = sum(arm["reason"].startswith("not finished") for arm in arms)
    said = {
        "unfinished": f"**Unfinished:** {missing} of {len(arms)} arms lack runs. "
        if missing
        else "",
        "length": counted(record["epochs"], "epoch"),
        "number": counted(len(record["seeds"]), "seed"),
        "took": format_duration(3600 * record["hours"]["spent"]),
        "threads": counted(machine["threads"], "thread"),
        "day": machine["time"][:10],
        "passes": "; ".join(f"{title}: {count}" for title, count in record["passes"].items()),
    }
    return HEAD.format(**{**record, **said, "device": machine["device"]})


def _rows(table: str, record: Mapping[str, Any]) -> Iterator[dict[str, Cell]]:
    """A line for each published row and arm that stands beside it, then for the arms without a row."""
    compared = TABLES[table]
    arms = [
        arm for one in record["parts"].values() if one["experiment"] == table for arm in one["arms"]
    ]
    for row in shown(table):
        values = ("–" if value is None else f"{value:.1f}" for value in row.values)
        known: dict[str, Cell] = {"method": row.method, "epochs": str(row.epochs or "–")}
        known |= dict(zip(compared.columns, values, strict=True)) | {
            "full scale": command_of(table, row)
        }
        own = [
            cells for arm in arms if arm["row"] == [row.method, row.epochs] for cells in _arm(arm)
        ]
        for cells in own or [{"small scale": _why_not(table, row, arms, record)}]:
            yield known | cells
    for cells in (cells for arm in arms if arm["row"] is None for cells in _arm(arm)):
        yield {**dict.fromkeys(("method", "epochs", *compared.columns, "full scale"), ""), **cells}


def _arm(arm: Mapping[str, Any]) -> Iterator[dict[str, Cell]]:
    """The cells of an arm, a line for each of its lengths."""
    results: list[dict[str, Any]] = arm["results"] or [{"scores": {}}]
    for result in results:
        name = (
            f"{arm['arm']}, {counted(result['epochs'], 'epoch')}"
            if len(results) > 1
            else arm["arm"]
        )
        counts = {len(values) for values in result["scores"].values()}
        seeds = f"{counted(max(counts), 'seed')}" if counts else ""
        scores: dict[str, Cell] = {
            column: mean_std(values) for column, values in result["scores"].items()
        }
        yield {"small scale": ", ".join(filter(None, (name, seeds, arm["reason"]))), **scores}


def _why_not(table: str, row: Row, arms: list[Any], record: Mapping[str, Any]) -> str:
    """Why a published row has no arm at the small scale."""
    for method, epochs in (arm["row"] for arm in arms if arm["row"]):
        if row.epochs and (
            published.find([row], method, row.epochs) or _name(method) == _name(row.method)
        ):
            other = (
                f"length: see the row of {epochs} epochs"
                if epochs != row.epochs
                else f"batch: see {method}"
            )
            return f"all arms have one {other}"
    if row.method in VERSIONS:
        return f"only {VERSIONS[row.method]} is here: see table 1"
    if row.method in ABSENT:
        return str(ABSENT[row.method])
    made_by = {
        arm.published[0]: method
        for method in METHODS
        for arm in arms_of(method, "full")
        if arm.published
    }
    return str(record["left_out"].get(f"{table}-{made_by.get(row.method)}", "not in this run"))
