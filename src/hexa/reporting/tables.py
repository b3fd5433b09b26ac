"""Numbers as text, and tables of them for Markdown and the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from hexa.published import Comparison

Cell = str | float | Sequence[float] | None
Rows = Sequence[Mapping[str, Cell]]

NOTHING = "–"


def mean_std(values: Sequence[float], digits: int = 1) -> str:
    """`98.1 ± 0.3`: the mean and the sample standard deviation (n − 1); a single value alone, "–" for none.

    >>> mean_std([97.9, 98.1, 98.6])
    '98.2 ± 0.4'
    """
    if not values:
        return NOTHING
    mean, std = mean_and_std(values)
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample standard deviation (n − 1) of two or more values; None for a single one."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def counted(count: int, what: str) -> str:
    """1 epoch, 3 epochs."""
    return f"{count} {what}{'s' * (count != 1)}"


def format_number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, without superfluous zeros: 0.06, 3.41, 1,234, 1e-05.

    >>> "  ".join(format_number(v) for v in (0.06, 3.4142, 1234.5, 0.00001, 0))
    '0.06  3.41  1,234  1e-05  0'
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.{digits - 1}e}".replace(".00e", "e").replace(".0e", "e").replace("e+0", "e").replace("e+", "e")
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_duration(seconds: float) -> str:
    """Seconds in the two units that matter.

    >>> ", ".join(format_duration(s) for s in (3.24, 59.6, 75, 3600 * 5 + 120, 86400 * 3))
    '3.2 s, 1 min 0 s, 1 min 15 s, 5 h 2 min, 3 d 0 h'
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {name}"
    return f"{whole} s"


def markdown_table(rows: Rows, *, digits: int = 1) -> str:
    """The rows as Markdown, the best mean of each column in bold; ends with a newline. Pipes in texts are escaped.

    rows: mappings of column name to text, a number, several numbers (shown as mean ± std) or None. Larger is better.
    Columns appear in the order in which they are first named.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        return ""
    lines = [" | ".join(map(_escape, columns))]
    means = [{column: _mean(row.get(column)) for column in columns} for row in rows]
    known = {column: [mean for row in means if (mean := row[column]) is not None] for column in columns}
    best = {column: max(values) for column, values in known.items() if len(set(values)) > 1}
    for row, own in zip(rows, means, strict=True):
        texts = {column: _escape(_shown(row.get(column), digits)) for column in columns}
        cells = [f"**{text}**" if own[c] is not None and own[c] == best.get(c) else text for c, text in texts.items()]
        lines.append(" | ".join(cells))
    head, *body = (f"| {line} |\n" for line in lines)
    return f"{head}|---|{'---:|' * (len(columns) - 1)}\n{''.join(body)}"


def _mean(cell: Cell) -> float | None:
    """The mean of a cell's numbers; None for text, nothing, and what is not finite."""
    values = [] if cell is None or isinstance(cell, str) else [cell] if isinstance(cell, int | float) else cell
    mean = statistics.fmean(values) if len(values) else math.nan
    return mean if math.isfinite(mean) else None


def _shown(cell: Cell, digits: int) -> str:
    if cell is None or isinstance(cell, str):
        return NOTHING if cell is None else cell
    return mean_std([cell] if isinstance(cell, int | float) else list(cell), digits)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def beside(compared: Comparison, name: str) -> Table:
    """A result, under the name of its backbone, above the published rows; for a terminal."""
    from rich.table import Table

    table = Table(box=None)
    for number, head in enumerate(("", "epochs", *compared.columns)):
        table.add_column(head, justify="right" if number else "left")
    table.add_row(name, "", *(_percent(value) for value in compared.own), style="bold")
    for row in compared.rows:
        table.add_row(row.method, "" if row.epochs is None else str(row.epochs), *map(_percent, row.values))
    return table


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"
