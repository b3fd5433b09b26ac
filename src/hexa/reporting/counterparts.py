"""Results of runs above the published rows they are to be read beside (REFERENCE §8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hexa import published
from hexa.published import Comparison, Row, Table, Values
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
class Block(Table):
    """A published table with the runs above it. marked: the rows that the runs' recipes set out to repeat."""

    ours: tuple[Ours, ...] = ()
    marked: frozenset[tuple[str, int | None]] = frozenset()


def blocks(runs: Sequence[Run], names: Sequence[str]) -> list[Block]:
    """A block for every published table that a result, or the recipe of a run without such a result, belongs to.

    The columns of a table that some run has a value for are shown, with every row that has one of them. A recipe alone
    shows its counterpart, the same method with or without hard examples, and the supervised network.
    """
    compared: dict[str, list[tuple[int, Comparison, Record]]] = {}
    for number, run in enumerate(runs):
        for result in scores.newest(run):
            one = _beside(result)
            if one is not None:
                compared.setdefault(one.title, []).append((number, one, result))
    counterparts = [published.counterpart(str(run.config.get("recipe", ""))) for run in runs]
    marked = frozenset((row.method, row.epochs) for row in counterparts if row is not None)
    made = []
    for table in published.TABLES:
        results = compared.get(table.title, [])
        part = table.only([column for column in table.columns if any(column in one.columns for _, one, _ in results)])
        if results:
            made.append(Block(part.title, part.columns, part.rows, _ours(part, results, runs, names), marked))
    shown = {number for results in compared.values() for number, _, _ in results}
    for number, (run, row) in enumerate(zip(runs, counterparts, strict=True)):
        if row is not None and number not in shown:
            made.append(_of_recipe(run, names[number], number, row))
    return made


def _beside(result: Record) -> Comparison | None:
    """`published.beside` of whatever a file held."""
    try:
        return published.beside(result)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
        return None


def _ours(
    table: Table, results: Sequence[tuple[int, Comparison, Record]], runs: Sequence[Run], names: Sequence[str]
) -> tuple[Ours, ...]:
    """A row for each run and protocol."""
    values: dict[tuple[int, str], dict[str, float | None]] = {}
    cautions: dict[tuple[int, str], dict[str, None]] = {}  # in the order of the results
    for number, one, result in results:
        place = (number, scores.protocol(result))
        own = zip(one.columns, one.own, strict=True)
        values.setdefault(place, {}).update({column: value for column, value in own if is_number(value)})
        cautions.setdefault(place, {})[one.caution] = None
    return tuple(
        Ours(names[number], number % 8, protocol, _epochs(runs[number]), tuple(map(own.get, table.columns)),
             "; ".join(filter(None, cautions[number, protocol])))
        for (number, protocol), own in values.items()
    )  # fmt: skip


def _of_recipe(run: Run, name: str, number: int, row: Row) -> Block:
    epochs = run.config.get("epochs")
    remark = "not evaluated so yet" + (
        "" if epochs == row.epochs else f"; {epochs} epochs, the published row {row.epochs}: they are not comparable"
    )
    table = published.LINEAR
    ours = Ours(name, number % 8, "", _epochs(run), (None,) * len(table.columns), remark)
    rows = tuple(published.rows_for(str(run.config["recipe"])))
    return Block(table.title, table.columns, rows, (ours,), frozenset({(row.method, row.epochs)}))


def _epochs(run: Run) -> str:
    epochs = run.config.get("epochs")
    return format_number(epochs) if is_number(epochs) else text(epochs)
