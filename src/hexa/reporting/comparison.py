"""Short descriptions of runs and their differences: key facts, the command, configuration fields."""

from __future__ import annotations

from collections.abc import Sequence

from hexa.reporting.runs import Record, Run, flatten, is_number
from hexa.reporting.tables import NOTHING, Table, format_duration, format_number, text

#: The key facts of a configuration: label and dotted path.
_FACTS = {
    "Recipe": "recipe",
    "Method": "method.name",
    "Data": "data",
    "Network": "network.name",
    "Epochs": "epochs",
    "Batch size": "batch_size",
    "Learning rate": "optimizer.learning_rate",
    "Reduction": "objective.reduction",
    "Image size": "views.size",
    "Precision": "training.precision",
    "Seed": "seed",
}
#: Fields of environment.json about when and by whom, not on what.
_OF_ONE_RUN = ("time", "command", "launcher", "resumed")


def facts(run: Run) -> list[tuple[str, str]]:
    """The key facts of a run that its configuration has: (label, text)."""
    fields = flatten(run.config)
    shown = {label: fields[path] for label, path in _FACTS.items() if path in fields}
    if run.config:
        hard = run.config.get("hard_examples")
        shown["Hard examples"] = _hard_examples(hard if isinstance(hard, dict) else {})
    if "precision" in run.environment:
        shown["Precision"] = run.environment["precision"]
    if run.seconds is not None:
        shown["Training time"] = format_duration(run.seconds)
    for label, lines, key in (
        ("Last k-NN, %", run.monitor, "knn"),
        ("Last loss", run.train, "loss"),
    ):
        numbers = [line[key] for line in lines if is_number(line.get(key))]
        if numbers:
            shown[label] = f"{numbers[-1]:.2f}"
    return [(label, text(value)) for label, value in shown.items() if value is not None]


def differences(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """The configuration fields, by dotted path, in which the runs differ.

    A part that some runs lack altogether, such as a hard example, is one row; its fields follow where they differ.
    """
    return _differing([flatten(run.config) for run in runs], names)


def other_environments(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """The same for what they ran on: versions, machine, precision; not when, and not by which command."""
    flat = []
    for run in runs:
        kept = {key: value for key, value in run.environment.items() if key not in _OF_ONE_RUN}
        flat.append(flatten(kept))
    return _differing(flat, names)


def _differing(flat: Sequence[Record], names: Sequence[str]) -> Table:
    rows: dict[str, tuple[str, ...]] = {}
    paths = dict.fromkeys(path for fields in flat for path in fields)
    for path in sorted(paths, key=lambda path: "." in path):
        part = path.rpartition(".")[0]
        present = [any(key.startswith(f"{part}.") or not part for key in fields) for fields in flat]
        # a run without configuration (an evaluation alone) does not differ
        lacking = [bool(fields) and not there for fields, there in zip(flat, present, strict=True)]
        if any(lacking):
            rows[part] = (part, *("present" if there else NOTHING for there in present))
        cells = [text(fields[path]) if path in fields else NOTHING for fields in flat]
        if len({cell for cell, there in zip(cells, present, strict=True) if there}) > 1:
            rows[path] = (path, *cells)
    header = ("field", *names)
    return Table(header, tuple(rows.values()), leading=len(header))


def _hard_examples(fields: Record) -> str:
    """The hard examples with what differs from the defaults: source, weight, start."""
    names = []
    for name, example in fields.items():
        example = example if isinstance(example, dict) else {}
        source = example.get("source", "std")
        weight = example.get("weight", 1)
        start = example.get("start", 0)
        remarks = []
        if source != "std":
            remarks.append(f"of {text(source)}")
        if is_number(weight) and weight != 1:
            remarks.append(f"weight {format_number(weight)}")
        if is_number(start) and start:
            remarks.append(f"from {start:.0%} of training")
        names.append(f"{name} ({', '.join(remarks)})" if remarks else str(name))
    return ", ".join(names) or "none"
