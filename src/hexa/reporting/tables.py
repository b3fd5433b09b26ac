"""Numbers as text, and the one kind of table, for the report and the terminal."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.table


NOTHING = "–"


def mean_std(values: Sequence[float]) -> str:
    """`98.1 ± 0.3`: the mean and the sample standard deviation (n − 1); a single value alone, "–" for none.

    >>> mean_std([97.9, 98.1, 98.6])
    '98.2 ± 0.4'
    """
    if not values:
        return NOTHING
    mean, std = mean_and_std(values)
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample standard deviation (n − 1) of two or more values; None for a single one."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def told_apart(paths: Sequence[Path | str]) -> list[str]:
    """The shortest ends of these paths that differ; equal ones are numbered. A string is not cut."""
    parts = [path.parts if isinstance(path, Path) else (path,) for path in paths]
    ends = ([str(Path(*one[-depth:])) for one in parts] for depth in itertools.count(1))
    short = next(
        names for names in ends if len(set(names)) == len({str(Path(*one)) for one in parts})
    )
    return [
        name if short.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(short, 1)
    ]


def counted(count: int, what: str) -> str:
    """1 epoch, 3 epochs."""
    return f"{count} {what}{'s' * (count != 1)}"


def format_number(value: float) -> str:
    """A number with three significant digits, without superfluous zeros: 0.06, 3.41, 1,234, 1e-05.

    >>> "  ".join(format_number(v) for v in (0.06, 3.4142, 1234.5, 0.00001, 0))
    '0.06  3.41  1,234  1e-05  0'
    """
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    text = f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_duration(seconds: float) -> str:
    """Seconds in the two units that matter.

    >>> ", ".join(format_duration(s) for s in (3.24, 59.6, 75, 3600 * 5 + 120, 86400 * 3))
    '3.2 s, 1 min 0 s, 1 min 15 s, 5 h 2 min, 3 d 0 h'
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {name}"
    return f"{whole} s"


def format_passes(passes: float, new: int | None = None) -> str:
    """The length of a training in words: passes over the images, and repeats of passes whose views are remembered.

    new: the number of passes with views of their own; None if all have.

    >>> format_passes(12), format_passes(39.7, 1)
    ('12 passes over the images', '1 pass over the images and 38.7 repeats of their views')
    """
    drawn = passes if new is None else min(passes, new)
    said = f"{_tenths(drawn, 'pass', 'passes')} over the images"
    if drawn == passes:
        return said
    return f"{said} and {_tenths(passes - drawn, 'repeat', 'repeats')} of their views"


def _tenths(count: float, one: str, several: str) -> str:
    """A count of at most one decimal, and what is counted."""
    shown = f"{count:.1f}".removesuffix(".0")
    return f"{shown} {one if shown == '1' else several}"


def text(value: Any) -> str:
    """Any value in words: lists joined, true and false as yes and no, None as "–"."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(inner)}" for key, inner in value.items())
    return str(value)


@dataclass(frozen=True)
class Table:
    """Rows and columns of texts; by default without any."""

    header: Sequence[str] = ()
    """The names of the columns."""
    rows: Sequence[Sequence[str]] = ()
    """Rows with a text for each column."""
    leading: int = 1
    """Number of columns at the left that hold labels; the others hold numbers."""
    best: Collection[tuple[int, int]] = ()
    """The places (row, column) to stand out."""
    own: Collection[int] = ()
    """The rows to stand out, such as the reader's own above published ones."""
    title: str = ""
    """The line above the table."""

    def terminal(self) -> rich.table.Table:
        """For rich, the rows that stand out in bold."""
        import rich.table

        drawn = rich.table.Table(box=None)
        for column, head in enumerate(self.header):
            drawn.add_column(
                head, justify="left" if column < self.leading else "right", overflow="fold"
            )
        for row, cells in enumerate(self.rows):
            drawn.add_row(*cells, style="bold" if row in self.own else None)
        return drawn


def best_of(cells: Sequence[Sequence[float]]) -> list[int]:
    """The places of the largest mean as it is shown, of one decimal; none where all are equal, or only one is known."""
    means = [round(statistics.fmean(cell), 1) if cell else math.nan for cell in cells]
    known = {mean for mean in means if math.isfinite(mean)}
    return [place for place, mean in enumerate(means) if len(known) > 1 and mean == max(known)]
