"""Published results to read own results next to; other distributions add them as entry points of `hexa.references`.

Each names a module with two functions:

- `tables(runs, names) -> list[Table]`: tables for the report of these runs
- `of_result(result) -> (Table, caution) | None`: the result of an evaluation above published rows, and why they may
  not be comparable
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hexa.entry_points import loaded
from hexa.reporting.runs import Run
from hexa.reporting.tables import Table

#: The entry points of modules with published results.
GROUP = "hexa.references"


def tables(runs: Sequence[Run], names: Sequence[str]) -> list[Table]:
    """Return all tables for the report of these runs."""
    found = []
    for module in loaded(GROUP):
        found += module.tables(runs, names)
    return found


def of_result(result: Mapping[str, Any]) -> list[tuple[Table, str]]:
    """Return the result of an evaluation in each table that it belongs to, with the table's caution."""
    found = [module.of_result(result) for module in loaded(GROUP)]
    return [one for one in found if one is not None]
