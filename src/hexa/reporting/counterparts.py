"""Results of runs above the published rows they are to be read beside (REFERENCE §8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hexa import published
from hexa.published import Comparison, Row, Values
from hexa.reporting import scores
from hexa.reporting.comparison import text
from hexa.reporting.runs import Record, Run, is_number
from hexa.reporting.tables import format_number


@dataclass(frozen=True)
class Ours:
    """What one run reached by one protocol: values stand under the block's columns, None where it was not measured."""

    name: str
    slot: int
    protocol: str
    epochs: str
    values: Values
    remark: str = ""


@dataclass(frozen=True)
class Block:
    """A published table with the runs above it. marked: the rows that the runs' recipes set out to repeat."""

    title: str
    columns: tuple[str, ...]
    ours: tuple[Ours, ...]
    rows: tuple[Row, ...]
    marked: frozenset[tuple[str, int | None]] = frozenset()


def blocks(runs: Sequence[Run], names: Sequence[str]) -> list[Block]:
    """A block for every published table that a result, or the recipe of a run without such a result, belongs to.

    Of a table the columns that some run has a value for are shown, with every row that has one of them. A recipe alone
    shows its counterpart, the same method with or without hard examples, and the supervised network.
    """
    found: dict[str, list[tuple[int, Comparison, Record]]] = {}
    for number, run in enumerate(runs):
        for result in scores.newest(run):
            compared = _beside(result)
            if compared is not None:
                found.setdefault(compared.title, []).append((number, compared, result))
    marked = frozenset((own.method, own.epochs) for run in runs if (own := _counterpart(run)) is not None)
    made = [_block(title, compared, runs, names, marked) for title, compared in found.items()]
    shown = {number for compared in found.values() for number, _, _ in compared}
    for number, run in enumerate(runs):
        own = _counterpart(run)
        if own is not None and number not in shown:
            made.append(_of_recipe(run, names[number], number, own))
    return made


def _beside(result: Record) -> Comparison | None:
    """`published.beside` of whatever a file held."""
    try:
        return published.beside(result)
    except (LookupError, TypeError, AttributeError, ValueError):
        return None


def _counterpart(run: Run) -> Row | None:
    return published.counterpart(str(run.config.get("recipe", "")))


def _block(
    title: str,
    compared: Sequence[tuple[int, Comparison, Record]],
    runs: Sequence[Run],
    names: Sequence[str],
    marked: frozenset[tuple[str, int | None]],
) -> Block:
    table = next(table for table in published.TABLES if table.title == title)
    columns = tuple(column for column in table.columns if any(column in one.columns for _, one, _ in compared))
    values: dict[tuple[int, str], dict[str, float | None]] = {}
    cautions: dict[tuple[int, str], list[str]] = {}
    for number, one, result in compared:
        place = (number, scores.protocol(result))
        own = {column: value for column, value in zip(one.columns, one.own, strict=True) if is_number(value)}
        values.setdefault(place, {}).update(own)
        cautions.setdefault(place, []).append(one.caution)
    ours = [
        Ours(
            names[number],
            number % 8,
            protocol,
            _epochs(runs[number]),
            tuple(reached.get(column) for column in columns),
            "; ".join(dict.fromkeys(filter(None, cautions[number, protocol]))),
        )
        for (number, protocol), reached in values.items()
    ]
    places = [table.columns.index(column) for column in columns]
    rows = [Row(row.method, row.epochs, tuple(row.values[place] for place in places)) for row in table.rows]
    kept = tuple(row for row in rows if any(value is not None for value in row.values))
    return Block(title, columns, tuple(ours), kept, marked)


def _of_recipe(run: Run, name: str, number: int, own: Row) -> Block:
    epochs = run.config.get("epochs")
    remark = "not evaluated so yet" + (
        "" if epochs == own.epochs else f"; {epochs} epochs, the published row {own.epochs}: they are not comparable"
    )
    nothing: Values = (None,) * len(published.LINEAR.columns)
    ours = Ours(name, number % 8, "", _epochs(run), nothing, remark)
    rows = tuple(published.rows_for(str(run.config["recipe"])))
    marked = frozenset({(own.method, own.epochs)})
    return Block(published.LINEAR.title, published.LINEAR.columns, (ours,), rows, marked)


def _epochs(run: Run) -> str:
    epochs = run.config.get("epochs")
    return format_number(epochs) if is_number(epochs) else text(epochs)
