"""Results of runs above the published rows they are to be read with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hexa.config import is_number
from hexa.reporting import scores
from hexa.reporting.runs import Run
from hexa.reporting.tables import NOTHING, Table, format_number, text
from hexa_paper import published

#: A label, epochs, and the text of each column.
_Own = tuple[str, str, dict[str, str]]


def tables(runs: Sequence[Run], names: Sequence[str]) -> list[Table]:
    """A table for every published one that a result of a run belongs to.

    It has the columns of which some run has a value, and every row that has one of them.
    """
    compared: dict[str, list[_Own]] = {}
    for run, name in zip(runs, names, strict=True):
        epochs = run.config.get("epochs")
        shown = format_number(epochs) if is_number(epochs) else text(epochs)
        for result in scores.newest(run):
            # a file may hold anything
            with suppress(LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
                one = published.beside(result)
                if one is None:
                    continue
                remarks = [scores.protocol(result), one.caution]
                label = f"{name} ({'; '.join(filter(None, remarks))})"
                values = _texts(one)
                compared.setdefault(one.title, []).append((label, shown, values))
    made = []
    for table in published.TABLES:
        rows = compared.get(table.title, [])
        known = {column for _, _, values in rows for column in values}
        columns = [column for column in table.columns if column in known]
        if columns:
            part = table.only(columns)
            made.append(_joined(part, rows))
    return made


def of_result(result: Mapping[str, Any]) -> tuple[Table, str] | None:
    """The result of an evaluation above the published rows of its columns, and why they may not be comparable."""
    one = published.beside(result)
    if one is None:
        return None
    label = str(result["backbone"])
    table = _joined(one, [(label, "", _texts(one))])
    return table, one.caution


def _texts(one: published.Comparison) -> dict[str, str]:
    """The result's own value of each column."""
    found = {}
    for column, value in zip(one.columns, one.own, strict=True):
        found[column] = NOTHING if value is None else f"{value:.1f}"
    return found


def _joined(table: published.Table, own: Sequence[_Own]) -> Table:
    """Own rows above the published ones."""
    rows: list[tuple[str, ...]] = []
    for label, epochs, values in own:
        shown = [values.get(column, NOTHING) for column in table.columns]
        rows.append((label, epochs, *shown))
    for row in table.rows:
        published_values = map(text, (row.epochs, *row.values))
        rows.append((row.method, *published_values))
    header = ("method", "epochs", *table.columns)
    return Table(header, tuple(rows), own=range(len(own)), title=table.title)
