"""Reads groups of images, such as patients or sessions, from a table or the metadata of a source."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hexa.config import UserError, reason, some, whole_characters
from hexa.data.sources.source import Source, Subset
from hexa.runtime import parsing
from hexa.runtime.paths import composed, location

#: Maximum size of a CSV file of groups, in bytes: enough for millions of images.
_MOST_BYTES = 1 << 28


def groups_of(spec: str, source: Source) -> list[str | None]:
    """Return the group of each image; None for an image without a group. Raises UserError.

    spec: FILE.csv with columns path and group, column:NAME of a parquet source, or key:NAME of the .json files of a
    webdataset.
    """
    if isinstance(source, Subset):  # metadata describe the whole source
        groups = groups_of(spec, source.source)
        return [groups[row] for row in source.rows.tolist()]
    kind, _, name = spec.partition(":")
    if kind in ("column", "key") and name:
        # tables store "" and nan for missing values
        return [None if text in ("", "nan") else text for text in source.metadata(kind, name)]
    return _read(location(spec), source, f"--groups {location(spec)}")


def _read(path: Path, source: Source, where: str) -> list[str | None]:
    """Read the group of each image from a CSV file. Raises UserError."""
    try:
        text = parsing.read_text(path, _MOST_BYTES)
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        why = getattr(error, "strerror", None) or reason(error).removeprefix(f"{path}: ")
        raise UserError(
            f"{where}: cannot be read ({why}); give FILE.csv, column:NAME or key:NAME"
        ) from None
    try:
        return _groups(csv.DictReader(io.StringIO(text, newline="")), source, where)
    except csv.Error as error:
        raise UserError(f"{where}: is not CSV ({reason(error)}); give rows of path,group") from None


def _name(path: str) -> str:
    """Return the path of an image in Unicode normal form, so that equal names match."""
    return composed(whole_characters(path))


def _groups(rows: csv.DictReader[str], source: Source, where: str) -> list[str | None]:
    rows.fieldnames = [cell.strip().lower() for cell in rows.fieldnames or ()]
    if not {"path", "group"} <= {*rows.fieldnames}:
        raise UserError(
            f"{where}: its first row must name the columns path and group, separated by a comma; "
            f"it names {some(map(repr, rows.fieldnames))}"
        )
    places: dict[str, int] = {}
    for index, name in enumerate(map(_name, source.paths)):
        places[name] = -1 if name in places else index
    groups: list[str | None] = [None] * len(source)
    unknown = []
    for row in rows:
        if row["path"] is None or row["group"] is None:
            raise UserError(
                f"{where}: line {rows.line_num} lacks a column; "
                "give path and group, separated by a comma"
            )
        name = _name(row["path"])
        group = row["group"].strip() or None
        place = places.get(name)
        if place is None:
            unknown.append(name)
        elif place < 0:
            raise UserError(
                f"{where}: several images of {source!r} are called {name!r}; "
                "store the groups in the metadata of the source"
            )
        elif groups[place] not in (None, group):
            raise UserError(
                f"{where}: {name!r} is both in group {groups[place]!r} and in {group!r}; "
                "give each image one group"
            )
        else:
            groups[place] = group
    if unknown:
        raise UserError(
            f"{where}: {len(unknown):,} rows name images that are not in {source!r}, such as "
            f"{unknown[0][:100]!r}; write names like {whole_characters(source.paths[0])!r}"
        )
    return groups
