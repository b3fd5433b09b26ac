"""Results of runs above the published rows they are to be read beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hexa.reporting import scores
from hexa.reporting.runs import Record, Run, is_number
from hexa.reporting.tables import NOTHING, Table, format_number, text
from hexa_paper import published
from hexa_paper.published import Comparison


def tables(runs: Sequence[Run], names: Sequence[str]) -> list[Table]:
    """A table for every published one that a result, or the recipe of a run without such a result, belongs to.

    The columns of a table that some run has a value for are shown, with every row that has one of them. A recipe alone
    shows its counterpart, the same method with or without hard examples, and the supervised network.
    """
    compared: dict[str, list[tuple[int, Comparison, Record]]] = {}
    for number, run in enumerate(runs):
        for result in scores.newest(run):
            # a file may hold anything
            with suppress(LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
                if (one := published.beside(result)) is not None:
                    compared.setdefault(one.title, []).append((number, one, result))
    counterparts = [published.counterpart(str(run.config.get("recipe", ""))) for run in runs]
    repeated = {(row.method, row.epochs) for row in counterparts if row is not None}
    made = []
    for table in (table for table in published.TABLES if table.title in compared):
        results = compared[table.title]
        part = table.only(
            [
                column
                for column in table.columns
                if any(column in one.columns for _, one, _ in results)
            ]
        )
        made.append(_beside(part, _own(part.columns, results, runs, names), repeated))
    shown = {number for results in compared.values() for number, _, _ in results}
    for number, (run, row) in enumerate(zip(runs, counterparts, strict=True)):
        if row is not None and number not in shown:
            rows = tuple(published.rows_for(str(run.config["recipe"])))
            other = (
                f"; {_epochs(run)} epochs, the published row {row.epochs}: they are not comparable"
            )
            remark = "not evaluated so yet" + other * (run.config.get("epochs") != row.epochs)
            own = (
                f"{names[number]} ({remark})",
                _epochs(run),
                (None,) * len(published.LINEAR.columns),
            )
            made.append(
                _beside(replace(published.LINEAR, rows=rows), [own], {(row.method, row.epochs)})
            )
    return made


def of_result(result: Mapping[str, Any]) -> tuple[Table, str] | None:
    """The result of an evaluation above the published rows of its columns, and why they may not be comparable."""
    compared = published.beside(result)
    if compared is None:
        return None
    return _beside(compared, [(str(result["backbone"]), "", compared.own)]), compared.caution


def _beside(
    compared: published.Table,
    own: Sequence[tuple[str, str, published.Values]],
    repeated: Collection[tuple[str, int | None]] = (),
) -> Table:
    """Results (label, epochs, values) above the published rows of the same columns.

    repeated: (method, epochs) of the published rows that a recipe sets out to repeat, which are marked.
    """
    rows = [
        (label, epochs, *(NOTHING if v is None else f"{v:.1f}" for v in values))
        for label, epochs, values in own
    ]
    for row in compared.rows:
        label = row.method + (
            " (repeated by the recipe)" if (row.method, row.epochs) in repeated else ""
        )
        rows.append((label, *map(text, (row.epochs, *row.values))))
    return Table(
        ("method", "epochs", *compared.columns),
        tuple(rows),
        own=range(len(own)),
        title=compared.title,
    )


def _own(
    columns: Sequence[str],
    results: Sequence[tuple[int, Comparison, Record]],
    runs: Sequence[Run],
    names: Sequence[str],
) -> list[tuple[str, str, published.Values]]:
    """A row for each run and protocol: what it is and why it may not be comparable, its epochs and its values."""
    values: dict[tuple[int, str], dict[str, float | None]] = {}
    cautions: dict[tuple[int, str], dict[str, None]] = {}  # in the order of the results
    for number, one, result in results:
        place = (number, scores.protocol(result))
        own = zip(one.columns, one.own, strict=True)
        values.setdefault(place, {}).update(
            {column: value for column, value in own if is_number(value)}
        )
        cautions.setdefault(place, {})[one.caution] = None
    rows = []
    for (number, protocol), own_values in values.items():
        remarks = "; ".join(filter(None, (protocol, *cautions[number, protocol])))
        rows.append(
            (
                f"{names[number]} ({remarks})",
                _epochs(runs[number]),
                tuple(map(own_values.get, columns)),
            )
        )
    return rows


def _epochs(run: Run) -> str:
    epochs = run.config.get("epochs")
    return format_number(epochs) if is_number(epochs) else text(epochs)
