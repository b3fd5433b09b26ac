"""What runs are, in few words, and how they differ: key facts, the command again, configuration fields."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from hexa.reporting.runs import Record, Run, flatten, is_number
from hexa.reporting.tables import NOTHING, Table, format_number, text
from hexa.runtime.output import one_line


def facts(run: Run) -> list[tuple[str, str]]:
    """The key facts of a run that its configuration tells: (label, text)."""
    flat = flatten(run.config)
    hard = run.config.get("hard_examples")
    shown = [
        ("Recipe", flat.get("recipe")),
        ("Method", flat.get("method.name")),
        (
            "Hard examples",
            _hard_examples(hard if isinstance(hard, dict) else {}) if run.config else None,
        ),
        ("Data", flat.get("data")),
        ("Network", flat.get("network.name")),
        ("Epochs", flat.get("epochs")),
        ("Batch size", flat.get("batch_size")),
        ("Learning rate", flat.get("optimizer.learning_rate")),
        ("Reduction", flat.get("objective.reduction")),
        ("Image size", flat.get("views.size")),
        (
            "Test scale",
            round(scale, 3) if is_number(scale := flat.get("views.test_scale")) else scale,
        ),
        ("Precision", run.environment.get("precision", flat.get("training.precision"))),
        ("Seed", flat.get("seed")),
    ]
    return [(label, text(value)) for label, value in shown if value is not None]


def device(run: Run) -> str:
    """The machine, if it is known."""
    name = run.environment.get("device")
    processes = run.environment.get("processes")
    return (
        text(name) + (f" × {processes}" if is_number(processes) and processes > 1 else "")
        if name
        else ""
    )


def command(run: Run) -> str:
    """The command that repeats the run: its recipe with the fields that differ from it, else its config file.

    Of an adaptation it is the command that was given. Only a recipe of the package is asked: asking a file of the
    user's, or a stranger's, would run it.
    """
    fallback = shlex.join(["hexa", "pretrain", "--config", str(run.folder / "config.yaml")])
    if not run.config:
        return ""
    try:
        first, named = _adaptation(run) if run.adaptation else _pretraining(run.config)
        words = [
            first,
            *(f"{shlex.quote(name)} {shlex.quote(value)}" for name, value in named.items()),
        ]
    except (
        ImportError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # no such recipe, or other fields
        return fallback
    if any(one_line(word) != word for word in words):  # nothing to be pasted into a terminal
        return fallback
    return " ".join(words) if len(words) < 4 else " \\\n  ".join(words)


def _adaptation(run: Run) -> tuple[str, dict[str, str]]:
    """The command, such as `hexa adapt`, and its options."""
    request = run.adaptation["request"]
    given = options(request)
    command = f"hexa {request.get('command', 'adapt')} {shlex.quote(given.pop('BACKBONE'))}"
    return command, given | {"--out": str(run.folder)}


def options(request: Record) -> dict[str, str]:
    """The options that were given, by name, the backbone first."""
    seconds = float(request["seconds"])
    time = f"{seconds / 60:.10g}m" if seconds % 60 == 0 else f"{seconds:.10g}s"
    others = ("backbone", "seconds", "fields", "command")
    named = (
        {name: value for name, value in request.items() if name not in others}
        | {"time": time}
        | request["fields"]
    )
    shown = {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in named.items()
    }
    given = {f"--{name}": value for name, value in shown.items() if named[name] is not None}
    return {"BACKBONE": str(request["backbone"])} | given


def _pretraining(config: Record) -> tuple[str, dict[str, str]]:
    """`hexa pretrain` and its options."""
    texts = {
        f"--{path}": "none"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value)
        for path, value in _changes(config).items()
    }
    return f"hexa pretrain {shlex.quote(str(config['recipe']))}", texts


def _changes(config: Record) -> Record:
    """The fewest options that turn the recipe of a configuration into it, by dotted path; None takes a part out."""
    from hexa import recipes
    from hexa.recipes.experiment import override

    recipe = recipes.get(str(config.get("recipe")))
    there = set(recipe.hard_examples)
    wanted = dict(config.get("hard_examples") or {})
    changes: Record = {f"hard_examples.{name}": None for name in sorted(there - set(wanted))}
    # a hard example that the recipe lacks begins with the defaults of its kind
    added = {
        f"hard_examples.{name}.kind": wanted[name]["kind"] for name in wanted if name not in there
    }
    base = flatten(override(recipe, changes | added).model_dump(mode="json"))
    changes |= added
    changes |= {
        path: value
        for path, value in flatten(config).items()
        if path not in base or base[path] != value
    }
    for name in (
        wanted
    ):  # the name tells the kind where they are the same and something else names the hard example
        mine = f"hard_examples.{name}."
        if added.get(f"{mine}kind") == name and sum(path.startswith(mine) for path in changes) > 1:
            del changes[f"{mine}kind"]
    return changes


def differences(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """The configuration fields, by dotted path, in which the runs differ.

    A part that some runs lack altogether, such as a hard example, is one row; its fields follow where they differ.
    """
    return _differing([flatten(run.config) for run in runs], names)


def other_environments(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """The same for what they ran on: versions, machine, precision; not when, and not by which command."""
    kept = [
        {key: value for key, value in run.environment.items() if key not in _OF_ONE_RUN}
        for run in runs
    ]
    return _differing([flatten(fields) for fields in kept], names)


#: Fields of environment.json that tell when and by whom, not on what.
_OF_ONE_RUN = ("time", "command", "launcher", "resumed")


def _differing(flat: Sequence[Record], names: Sequence[str]) -> Table:
    rows: dict[str, tuple[str, ...]] = {}
    for path in sorted(
        dict.fromkeys(path for fields in flat for path in fields), key=lambda path: "." in path
    ):
        part = path.rpartition(".")[0]
        # a run without configuration (an evaluation alone) does not differ
        has = [
            bool(fields) and (not part or any(key.startswith(f"{part}.") for key in fields))
            for fields in flat
        ]
        if not all(has) and any(
            fields for fields, there in zip(flat, has, strict=True) if not there
        ):
            rows[part] = (part, *("present" if there else NOTHING for there in has))
        cells = [text(fields[path]) if path in fields else NOTHING for fields in flat]
        if len({cell for cell, there in zip(cells, has, strict=True) if there}) > 1:
            rows[path] = (path, *cells)
    header = ("field", *names)
    return Table(header, tuple(rows.values()), leading=len(header))


def _hard_examples(fields: Record) -> str:
    names = []
    for name, example in fields.items():
        example = example if isinstance(example, dict) else {}
        source = example.get("source", "std")
        weight = example.get("weight", 1)
        remarks = [f"of {text(source)}"] if source != "std" else []
        remarks += [f"weight {format_number(weight)}"] if is_number(weight) and weight != 1 else []
        start = example.get("start", 0)
        remarks += [f"from {start:.0%} of training"] if is_number(start) and start else []
        names.append(str(name) + (f" ({', '.join(remarks)})" if remarks else ""))
    return ", ".join(names) or "none"
