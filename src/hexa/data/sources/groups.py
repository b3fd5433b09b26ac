"""Groups of images that were taken together, from a table or the metadata of a source."""

from __future__ import annotations

import csv
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hexa.config import UserError, reason, whole_characters
from hexa.data.sources.source import Source, Subset, location
from hexa.runtime.paths import composed

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
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise UserError(f"{where}: is {kind}; give a CSV file with columns path and group")
        if status.st_size > _MOST_BYTES:
            raise UserError(
                f"{where}: has {status.st_size:,} bytes; at most {_MOST_BYTES:,} are read"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _groups(csv.reader(_lines(file)), source, where)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: is not UTF-8 ({reason(error)}); save it as CSV in UTF-8"
        ) from None
    except csv.Error as error:
        raise UserError(f"{where}: is not CSV ({reason(error)}); give rows of path,group") from None
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        words = getattr(error, "strerror", None) or reason(error)
        raise UserError(
            f"{where}: cannot be read ({words}); give FILE.csv, column:NAME or key:NAME"
        ) from None


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_MOST_LINE):
        if len(line) == _MOST_LINE:
            raise csv.Error(f"it has a line of {_MOST_LINE:,} characters or more")
        yield line


def _name(path: str) -> str:
    """The path of an image as text that matches in any normal form."""
    return composed(whole_characters(path))


def _groups(rows: Iterator[list[str]], source: Source, where: str) -> list[str | None]:
    places: dict[str, int] = {}
    for index, name in enumerate(map(_name, source.paths)):
        places[name] = -1 if name in places else index
    groups: list[str | None] = [None] * len(source)
    columns = (0, 1)
    count = 0
    unknown = 0
    example = ""
    for number, row in enumerate(rows):
        if number == 0:
            names = [cell.strip().lower() for cell in row]
            if {"path", "group"} <= {*names}:
                columns = (names.index("path"), names.index("group"))
                continue
            if (
                row and _name(row[0]) not in places and not {*row[0]} & {".", "/"}
            ):  # a header with other names
                continue
        if not row:
            continue
        if len(row) <= max(columns):
            missing = f"row {number + 1} has only {len(row)} column{'s' * (len(row) != 1)}"
            raise UserError(f"{where}: {missing}; give path and group, separated by a comma")
        name = _name(row[columns[0]])
        group = row[columns[1]].strip()
        count += 1
        place = places.get(name)
        if place is None:
            unknown = unknown + 1
            example = example or name
        elif place < 0:
            called = f"several images of {source!r} are called {name!r}"
            raise UserError(f"{where}: {called}; store the groups in its metadata")
        elif groups[place] not in (None, group or None):
            both = f"both in group {groups[place]!r} and in {group!r}"
            raise UserError(f"{where}: {name!r} is {both}; give each image one group")
        else:
            groups[place] = group or None
    if unknown:
        remedy = (
            f"such as {example[:100]!r}; write names like {whole_characters(source.paths[0])!r}"
        )
        raise UserError(
            f"{where}: {unknown:,} of {count:,} rows name images that are not in {source!r}, {remedy}"
        )
    return groups
