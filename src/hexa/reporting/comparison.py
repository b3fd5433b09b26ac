"""Differences between the configurations of runs."""

from __future__ import annotations

from collections.abc import Sequence

from hexa.reporting.runs import Run, flatten
from hexa.reporting.tables import NOTHING, Table, text


def differences(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """The configuration fields, by dotted path, in which the runs differ.

    A part that some runs lack altogether, such as a hard example, is one row; its fields follow where they differ.
    """
    flat = [flatten(run.config) for run in runs]
    rows: dict[str, tuple[str, ...]] = {}
    paths = dict.fromkeys(path for fields in flat for path in fields)
    for path in sorted(paths, key=lambda path: "." in path):
        part = path.rpartition(".")[0]
        present = []
        cells = []
        for fields in flat:
            has_part = any(key.startswith(f"{part}.") or not part for key in fields)
            present.append("present" if has_part else NOTHING)
            cells.append(text(fields[path]) if path in fields else NOTHING)
            # a run without configuration (an evaluation alone) does not differ
        known = {cell for cell, fields in zip(present, flat, strict=True) if fields}
        if NOTHING in known:
            rows[part] = (part, *present)
        if len({cell for cell, has in zip(cells, present, strict=True) if has != NOTHING}) > 1:
            rows[path] = (path, *cells)
    header = ("field", *names)
    return Table(header, tuple(rows.values()), leading=len(header))
