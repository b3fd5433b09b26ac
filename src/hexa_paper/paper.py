"""The page "The paper and our runs": every published row, the command that makes it, and the scores of small runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hexa.reporting.tables import NOTHING, Cell, counted, format_duration, markdown_table, mean_std
from hexa_paper import published, results, tables
from hexa_paper.figures.figure import short_name
from hexa_paper.plan import Job, Plan
from hexa_paper.published import Row
from hexa_paper.request import Request
from hexa_paper.studies import (
    ABSENT,
    EXPERIMENTS,
    HEAD,
    METHODS,
    TABLES,
    VERSIONS,
    Arm,
    arms_of,
    evaluated,
    row_of,
    shown,
)

PAGE = "paper.md"
_IMAGENET = "--data folder:PATH/imagenet"


# -- from files to a record -------------------------------------------------------------------------------------------


def write(plans: Mapping[str, Plan], request: Request, left_out: Mapping[str, str]) -> None:
    """Write the page of all experiments, and its record as JSON. left_out: why parts are missing."""
    out = request.folder
    sources = {
        target.source: target.known_as or short_name(target.source) for target in request.targets
    }
    parts: dict[str, Any] = {}
    found: dict[str, Any] = {}
    passes: dict[str, int] = {}
    for name, plan in plans.items():
        jobs = plan.final()
        parts[name] = _part(plan, jobs, sources)
        for job in jobs:
            found[job.name] = results.read(out, job.name) or {}
            for measure in job.measures:
                if "epochs" in measure.options:
                    passes[measure.title] = measure.options["epochs"]
    trained = [one for one in found.values() if one.get("pretrain_seconds")]
    record = {
        "experiment": "all",
        "data": sources[request.data],
        "images": request.num_images,
        "seeds": sorted({one["seed"] for one in trained}),
        "epochs": request.epochs,
        "passes": passes,
        "hours": {"spent": sum(one["pretrain_seconds"] for one in trained) / 3600},
        "machine": trained[0]["environment"] if trained else {},
        "left_out": dict(left_out),
        "parts": parts,
    }
    results.write(out / tables.RESULT, record)
    results.write(out / PAGE, page(record))


def _part(plan: Plan, jobs: Sequence[Job], sources: Mapping[str, str]) -> dict[str, Any]:
    """The results of a study as JSON: a record of every arm, with the reason if there are fewer than planned."""
    study = plan.study
    rows = tables.rows_of(plan, jobs)
    arms = []
    for arm in study.arms:
        beside = row_of(study.name, arm) if study.name in TABLES else None
        own = [job for job in jobs if job.arm == arm]
        done = [job for job in own if not job.missing(plan.request.folder)]
        reason = ""
        if len(done) < len(own):
            reason = f"not finished: {len(done)} of {counted(len(own), 'run')}"
        found = []
        for row in (row for row in rows if row["key"] == arm.key):
            if row["diverged"]:
                reason = f"diverged with seeds {', '.join(map(str, row['diverged']))}"
            facts = {"epochs": row["epochs"], "rate": row["learning_rate"], "seeds": row["seeds"]}
            scores = {
                _named(name, sources): score["values"] for name, score in row["scores"].items()
            }
            found += [facts | {"scores": scores}] if scores else []
        place = beside and [beside.method, beside.epochs]
        about = {"arm": arm.name, "recipe": arm.recipe, "row": place}
        arms.append(about | {"reason": reason, "results": found})
    return {"experiment": study.name, "method": study.method, "arms": arms}


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
        return made or ABSENT[row.method]
    method = VERSIONS.get(row.method, row.method)
    for _, arm in _published_arms():
        assert arm.published is not None, "arms of the full scale have rows"
        of_another = arm.published == (method, row.epochs) and method != row.method
        if of_another or published.find(shown(table), *arm.published) == row:
            remark = published.REMARKS.get(arm.recipe, "") if table == "table1" else ""
            if of_another:
                remark = f"{method}, which the study leaves out"
            command = f"`hexa pretrain {arm.recipe} {_IMAGENET}`"
            return f"{command} ({remark})" if remark else command
    return "no recipe"


def _published_arms() -> list[tuple[str, Arm]]:
    """The arms of the full scale, each with its method."""
    return [(method, arm) for method in METHODS for arm in arms_of(method, "full")]


def page(record: Mapping[str, Any]) -> str:
    """The whole page. record: the results of `hexa reproduce all`."""
    parts = record["parts"].values()
    text = ["# The paper and our runs\n", _head(record)]
    for table, given in EXPERIMENTS.items():
        if "given" not in given:
            continue
        command = f"hexa reproduce {table} --method moco --scale full {given['given']}"
        others = ", ".join(list(METHODS)[1:])
        text.append(f"## Table {table[-1]}: {TABLES[table].title}\n")
        rows = "Rows that are pre-trained, with all their evaluations, at the full scale"
        text.append(f"{rows}: `{command}` (or {others}).\n")
        text.append(markdown_table(list(_rows(table, record))))
    text.append("## Figures\n\nThe paper prints no numbers of these.\n")
    for name, given in EXPERIMENTS.items():
        for part in parts:
            if name in TABLES or part["experiment"] != name:
                continue
            command = f"hexa reproduce {name} --method {part['method']} --scale full {_IMAGENET}"
            question = given["question"].rstrip(".?")
            text.append(f"### {name}, {part['method']}\n\n{question}: `{command}`\n")
            text.append(markdown_table([cells for arm in part["arms"] for cells in _arm(arm)]))
    return "\n".join(text)


def _head(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    arms = [arm for part in record["parts"].values() for arm in part["arms"]]
    missing = sum(arm["reason"].startswith("not finished") for arm in arms)
    said = {
        "unfinished": "",
        "length": counted(record["epochs"], "epoch"),
        "number": counted(len(record["seeds"]), "seed"),
        "took": format_duration(3600 * record["hours"]["spent"]),
        "device": machine.get("device", "an unknown device"),
        "threads": counted(machine.get("threads", 1), "thread"),
        "day": machine.get("time", NOTHING)[:10],
        "passes": "; ".join(f"{title}: {count}" for title, count in record["passes"].items()),
    }
    if missing:
        said["unfinished"] = f"**Unfinished:** {missing} of {len(arms)} arms lack runs. "
    return HEAD.format(**{**record, **said})


def _rows(table: str, record: Mapping[str, Any]) -> Iterator[dict[str, Cell]]:
    """A line for each published row and arm that stands next to it, then for the arms without a row."""
    compared = TABLES[table]
    parts = [part for part in record["parts"].values() if part["experiment"] == table]
    arms = [arm for part in parts for arm in part["arms"]]
    for row in shown(table):
        known: dict[str, Cell] = {"method": row.method, "epochs": str(row.epochs or NOTHING)}
        for column, value in zip(compared.columns, row.values, strict=True):
            known[column] = NOTHING if value is None else f"{value:.1f}"
        known["full scale"] = command_of(table, row)
        beside = [arm for arm in arms if arm["row"] == [row.method, row.epochs]]
        own = [cells for arm in beside for cells in _arm(arm)]
        for cells in own or [{"small scale": _why_not(table, row, record)}]:
            yield known | cells
    nothing: dict[str, Cell] = dict.fromkeys(
        ("method", "epochs", *compared.columns, "full scale"), ""
    )
    for arm in arms:
        if arm["row"] is None:
            yield from (nothing | cells for cells in _arm(arm))


def _arm(arm: Mapping[str, Any]) -> Iterator[dict[str, Cell]]:
    """The cells of an arm, a line for each of its lengths."""
    found: list[dict[str, Any]] = arm["results"] or [{"scores": {}}]
    for result in found:
        name = arm["arm"]
        if len(found) > 1:
            name = f"{name}, {counted(result['epochs'], 'epoch')}"
        counts = {len(values) for values in result["scores"].values()}
        seeds = counted(max(counts), "seed") if counts else ""
        cells: dict[str, Cell] = {
            "small scale": ", ".join(filter(None, (name, seeds, arm["reason"])))
        }
        for column, values in result["scores"].items():
            cells[column] = mean_std(values)
        yield cells


def _why_not(table: str, row: Row, record: Mapping[str, Any]) -> str:
    """Why a published row has no arm at the small scale: it differs by its length or batch, or its part is missing."""
    if row.method in ABSENT:
        return ABSENT[row.method]
    made = {arm.published[0]: method for method, arm in _published_arms() if arm.published}
    part = f"{table}-{made.get(row.method)}"
    return str(record["left_out"].get(part, "no arm of this length and batch"))
