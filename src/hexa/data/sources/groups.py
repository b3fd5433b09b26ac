"""Groups of images that were taken together, from a table or the metadata of a source."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hexa.config import UserError, reason, whole_characters
from hexa.data.sources.source import Source, Subset
from hexa.runtime import parsing
from hexa.runtime.paths import composed, location

#: Most bytes of a CSV file of groups (about fifty per image, for millions of images), and characters of a line.
_MOST_BYTES = 1 << 30
_MOST_LINE = 1 << 16


def groups_of(spec: str, source: Source) -> list[str | None]:
    """The group of each image of the source, or None for an image without a group. Raises UserError.

    spec: FILE.csv with columns path and group, column:NAME of a parquet source, or key:NAME, a field of the JSON beside
    each image of a webdataset.
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
    """The group of each image of the source from a CSV file. Raises UserError."""
    try:
        parsing.check(path, _MOST_BYTES)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _groups(csv.reader(_lines(file)), source, where)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 ({reason(error)})"
        raise UserError(f"{where}: {problem}; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{where}: is not CSV ({reason(error)}); give rows of path,group") from None
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        words = getattr(error, "strerror", None) or reason(error)
        remedy = "give FILE.csv, column:NAME or key:NAME"
        raise UserError(f"{where}: cannot be read ({words}); {remedy}") from None


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_MOST_LINE):
        if len(line) == _MOST_LINE:
            raise csv.Error(f"it has a line of {_MOST_LINE:,} characters or more")
        yield line


def _name(path: str) -> str:
    """The path of an image as text that matches in any normal form."""
    return composed(whole_characters(path))


def _groups(rows: Iterator[list[str]], source: Source, where: str) -> list[str | None]:
    columns = [cell.strip().lower() for cell in next(rows, [])]
    if not {"path", "group"} <= {*columns}:
        raise UserError(f"{where}: its first row must name the columns path and group")
    places: dict[str, int] = {}
    for index, name in enumerate(map(_name, source.paths)):
        places[name] = -1 if name in places else index
    groups: list[str | None] = [None] * len(source)
    unknown = []
    for number, row in enumerate(filter(None, rows), 2):
        cells = dict(zip(columns, row, strict=False))
        if not {"path", "group"} <= cells.keys():
            missing = f"row {number} has only {len(row)} of {len(columns)} columns"
            raise UserError(f"{where}: {missing}; give path and group, separated by a comma")
        name = _name(cells["path"])
        group = cells["group"].strip() or None
        place = places.get(name)
        if place is None:
            unknown.append(name)
        elif place < 0:
            called = f"several images of {source!r} are called {name!r}"
            raise UserError(f"{where}: {called}; store the groups in its metadata")
        elif groups[place] not in (None, group):
            both = f"both in group {groups[place]!r} and in {group!r}"
            raise UserError(f"{where}: {name!r} is {both}; give each image one group")
        else:
            groups[place] = group
    if unknown:
        many = f"{len(unknown):,} rows name images that are not in {source!r}"
        remedy = f"write names like {whole_characters(source.paths[0])!r}"
        raise UserError(f"{where}: {many}, such as {unknown[0][:100]!r}; {remedy}")
    return groups
