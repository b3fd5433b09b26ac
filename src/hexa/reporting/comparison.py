"""What runs are, in few words, and in what they differ: key facts, the command again, fields, evaluations, seeds."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hexa.config import UserError
from hexa.reporting.runs import Record, Run, flatten, is_number
from hexa.reporting.tables import NOTHING, format_duration, format_number, mean_std

_INCIDENTAL = ("seed",)
"""Fields in which two repetitions of one experiment may differ."""


@dataclass(frozen=True)
class Grid:
    """A table of texts: header, rows that begin with `leading` labels, and the places (row, column) of the best."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    leading: int = 1
    best: frozenset[tuple[int, int]] = frozenset()


def facts(run: Run) -> list[tuple[str, str]]:
    """The key facts of a run: (label, text), those only that its configuration tells."""
    flat = flatten(run.config)
    hard = run.config.get("hard_examples")
    shown = [
        ("Recipe", flat.get("recipe")),
        ("Method", flat.get("method.name")),
        ("Hard examples", _hard_examples(hard if isinstance(hard, dict) else {}) if run.config else None),
        ("Data", flat.get("data")),
        ("Network", flat.get("network.name")),
        ("Epochs", flat.get("epochs")),
        ("Batch size", flat.get("batch_size")),
        ("Learning rate", flat.get("optimizer.learning_rate")),
        ("Reduction", flat.get("objective.reduction")),
        ("Image size", flat.get("views.size")),
        ("Precision", run.environment.get("precision", flat.get("training.precision"))),
        ("Seed", flat.get("seed")),
    ]
    return [(label, text(value)) for label, value in shown if value is not None]


def device(run: Run) -> str:
    """The machine, as far as it is known."""
    name, processes = run.environment.get("device"), run.environment.get("processes")
    return text(name) + (f" × {processes}" if is_number(processes) and processes > 1 else "") if name else ""


def command(run: Run) -> str:
    """The command that repeats the run: its recipe with the fields that differ from it, else its config file."""
    fallback = shlex.join(["hexa", "pretrain", "--config", str(run.folder / "config.yaml")])
    if not run.config:
        return ""
    try:
        changes = _changes(run.config)
    except (UserError, ImportError, AttributeError, TypeError):  # no such recipe here, or fields of another version
        return fallback
    words = [f"hexa pretrain {shlex.quote(str(run.config['recipe']))}"]
    for path, value in changes.items():
        given = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        words.append(f"--{path} {shlex.quote(given)}")
    return " ".join(words) if len(words) < 4 else " \\\n  ".join(words)


def _changes(config: Record) -> Record:
    """The fewest options that turn the recipe of a configuration into it, by dotted path; None takes a part out."""
    from hexa import plugins
    from hexa.experiment import override

    recipe = plugins.experiment_of(str(config.get("recipe")))
    there, wanted = set(recipe.hard_examples), dict(config.get("hard_examples") or {})
    changes: Record = {f"hard_examples.{name}": None for name in sorted(there - set(wanted))}
    # a hard example that the recipe lacks begins with the defaults of its kind
    added = {f"hard_examples.{name}.kind": wanted[name]["kind"] for name in wanted if name not in there}
    base = flatten(override(recipe, changes | added).model_dump(mode="json"))
    changes |= added
    changes |= {path: value for path, value in flatten(config).items() if path not in base or base[path] != value}
    for name in wanted:  # the name tells the kind where they are the same and something else names the hard example
        mine = f"hard_examples.{name}."
        if added.get(f"{mine}kind") == name and sum(path.startswith(mine) for path in changes) > 1:
            del changes[f"{mine}kind"]
    return changes


def differences(runs: Sequence[Run]) -> Grid:
    """The configuration fields in which the runs differ, a row a field, a column a run.

    A part that some runs lack altogether, such as a hard example, is one row; its fields follow where they differ.
    """
    flat = [flatten(run.config) for run in runs]
    rows: dict[str, tuple[str, ...]] = {}
    for path in dict.fromkeys(path for fields in flat for path in fields):
        part = path.rpartition(".")[0]
        has = [not part or any(other.startswith(f"{part}.") for other in fields) for fields in flat]
        if not all(has) and any(fields for fields, there in zip(flat, has, strict=True) if not there):
            rows[part] = (part, *("present" if there else NOTHING for there in has))
        cells = [text(fields[path]) if path in fields else NOTHING for fields in flat]
        if len({cell for cell, there in zip(cells, has, strict=True) if there}) > 1:
            rows[path] = (path, *cells)
    return Grid(("field",), tuple(rows.values()))


def evaluations(runs: Sequence[Run], names: Sequence[str]) -> Grid:
    """One run: a row an evaluation with everything it tells. Several: a row a metric, a column a run."""
    return _listed_evaluations(runs[0]) if len(runs) == 1 else _side_by_side(runs, names)


def over_seeds(runs: Sequence[Run], names: Sequence[str]) -> Grid:
    """Mean ± std over runs that differ by their seed alone, a column an arm; empty if no experiment was repeated."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        fields = {path: value for path, value in run.config.items() if path not in _INCIDENTAL}
        arms.setdefault(json.dumps(fields, sort_keys=True, default=str) if run.config else run.name, []).append(run)
    if len(runs) < 2 or len(arms) == len(runs):
        return Grid((), ())
    header = tuple(
        f"{names[list(runs).index(members[0])]}" + (f" and {len(members) - 1} more" if len(members) > 1 else "")
        for members in arms.values()
    )
    return _metrics(list(arms.values()), header)


def listed(fields: Record) -> list[tuple[str, str]]:
    """Nested fields as (dotted path, text)."""
    return [(path, text(value)) for path, value in flatten(fields).items()]


def text(value: Any) -> str:
    """A value as a reader expects it: text as it is, lists joined, true and false as words."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(inner)}" for key, inner in value.items())
    return str(value)


def _hard_examples(fields: Record) -> str:
    names = []
    for name, example in fields.items():
        example = example if isinstance(example, dict) else {}
        source, weight = example.get("source", "std"), example.get("weight", 1)
        remarks = [f"of {text(source)}"] if source != "std" else []
        remarks += [f"weight {format_number(weight)}"] if is_number(weight) and weight != 1 else []
        names.append(str(name) + (f" ({', '.join(remarks)})" if remarks else ""))
    return ", ".join(names) or "none"


def _listed_evaluations(run: Run) -> Grid:
    """What was evaluated and how, on the left; metrics, seed and time, on the right."""
    about = [key for key in ("preset", "data", "backbone", "encoder", "branch") if _told(run, key)]
    after = [key for key in ("seed", "seconds") if _told(run, key)]
    metrics = list(dict.fromkeys(str(name) for result in run.results for name in result["metrics"]))
    rows = []
    for result in run.results:
        described = (_described(key, result.get(key)) for key in about)
        values = (_metric(result["metrics"].get(name)) for name in metrics)
        last = (_described(key, result.get(key)) for key in after)
        rows.append((text(result.get("protocol", "?")), *described, *values, *last))
    header = ("protocol", *about, *metrics, *("time" if key == "seconds" else key for key in after))
    return Grid(header if rows else (), tuple(rows), 1 + len(about))


def _told(run: Run, key: str) -> bool:
    return any(result.get(key) is not None for result in run.results)


def _described(key: str, value: Any) -> str:
    return format_duration(value) if key == "seconds" and is_number(value) else text(value)


def _side_by_side(runs: Sequence[Run], names: Sequence[str]) -> Grid:
    return _metrics([[run] for run in runs], tuple(names))


def _metrics(arms: Sequence[Sequence[Run]], header: tuple[str, ...]) -> Grid:
    """A row a (protocol, data, metric), a column an arm; the best mean of each row is marked."""
    found: dict[tuple[str, ...], list[list[float]]] = {}
    for number, members in enumerate(arms):
        for run in members:
            for result in run.results:
                protocol = " ".join(filter(None, [text(result.get("protocol", "?")), _optional(result.get("preset"))]))
                for metric, value in result["metrics"].items():
                    place = (protocol, _optional(result.get("data")), str(metric))
                    if is_number(value):
                        found.setdefault(place, [[] for _ in arms])[number].append(float(value))
    rows, best = [], set()
    for row, (described, cells) in enumerate(found.items()):
        rows.append((*described, *map(mean_std, cells)))
        means = [statistics.fmean(cell) if cell else -math.inf for cell in cells]
        if sum(map(bool, cells)) > 1 and len({mean for mean in means if mean > -math.inf}) > 1:
            best |= {(row, 3 + column) for column, mean in enumerate(means) if mean == max(means)}
    return Grid(("protocol", "data", "metric", *header) if rows else (), tuple(rows), 3, frozenset(best))


def _optional(value: Any) -> str:
    return "" if value is None else text(value)


def _metric(value: Any) -> str:
    return f"{value:.2f}" if is_number(value) else text(value)
