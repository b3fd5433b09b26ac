"""Turns labels of any source into class numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hexa.runtime.paths import composed

#: Names of label columns, in order of preference.
COLUMNS = ("label", "labels", "fine_label", "class", "target")
Numbers = NDArray[np.int64]
_TEXT = pa.dictionary(pa.int32(), pa.large_string())


class NotClasses(Exception):
    """Labels that cannot be classes; the message is their type."""


def are_classes(kind: Any) -> bool:
    """True if values of this Arrow type can be classes: integers, booleans, text, or dictionaries of these."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return _is_text(kind) or any(
        check(kind) for check in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    )


def column_of(types: dict[str, Any]) -> tuple[str | None, str]:
    """Return the label column by names and Arrow types of the columns, or None with the reason if its type is unsuitable."""
    named = [name for name in COLUMNS if name in types]
    for name in named:
        if are_classes(types[name]):
            return name, ""
    if not named:
        alike = [name for name in types if name.lower() in COLUMNS]
        return None, "".join(
            f"the column '{name}' is not called {name.lower()}; rename it" for name in alike[:1]
        )
    return None, not_classes(f"column '{named[0]}'", types[named[0]])


def not_classes(what: str, kind: object) -> str:
    """Return a sentence on labels that cannot be classes."""
    return (
        f"the {what} holds {kind}, which cannot be a class; classes are integers, booleans or text"
    )


def of_values(values: Sequence[object]) -> Any:
    """Return labels as an Arrow array, null for a missing label; numbers among text become text. Raises NotClasses."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, str}:
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.array(values)
    except OverflowError:
        raise NotClasses("integers of more than 64 bits") from None
    except pa.ArrowException:
        raise NotClasses(" and ".join(sorted(kind.__name__ for kind in kinds))) from None


def numbered(columns: Iterable[Any], others: Iterable[Any]) -> tuple[Numbers, list[str] | None]:
    """Return the class numbers of labels that are not null, and the class names; None for integers.

    Integers are unchanged, False and True become 0 and 1, and text is numbered in sorted order. columns: Arrow arrays of
    labels of the split. others: labels of the other splits, which only text needs. Raises NotClasses.
    """
    own = _plain_with_labels(columns)
    kind = _only_type(own)
    parts = [np.zeros(0, np.int64)]
    if kind != _TEXT:
        parts += [column.drop_null().cast(pa.int64()).to_numpy() for column in own]
        return np.concatenate(parts), ["False", "True"] if kind == pa.bool_() else None
    rest = _plain_with_labels(others)
    _only_type([*own, *rest])
    words = [_words(column) for column in (*own, *rest)]
    used = {entries[place] for entries, places in words for place in np.unique(places)}
    names = sorted(name for name in used if name is not None)
    number = {name: place for place, name in enumerate(names)}
    for entries, places in words[: len(own)]:
        numbers = [-1 if name is None else number.get(name, -1) for name in entries]
        parts.append(np.array(numbers, np.int64)[places])
    return np.concatenate(parts), names


def _plain_with_labels(columns: Iterable[Any]) -> list[Any]:
    """Return `_plain` columns, without columns of nulls."""
    plain = map(_plain, columns)
    return [column for column in plain if column.null_count < len(column)]


def _plain(column: Any) -> Any:
    """Return labels as integers, booleans, or a dictionary of text, in one chunk. Raises NotClasses."""
    kind = column.type
    if not are_classes(kind):
        raise NotClasses(str(kind))
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    is_dictionary = pa.types.is_dictionary(kind)
    is_text = _is_text(kind.value_type if is_dictionary else kind)
    try:
        if is_text:
            # a dictionary is not expanded, because a short file may hold a long text a million times
            return (column if is_dictionary else column.dictionary_encode()).cast(_TEXT)
        column = column.dictionary_decode() if is_dictionary else column
        return column if pa.types.is_boolean(column.type) else column.cast(pa.int64())
    except pa.ArrowException:
        raise NotClasses(f"{kind} that is not text" if is_text else f"{kind} too large") from None


def _only_type(columns: Sequence[Any]) -> Any:
    """Return the common type of the columns; None without columns. Raises NotClasses for several types."""
    types = {column.type for column in columns}
    if len(types) > 1:
        words = sorted("text" if kind == _TEXT else str(kind) for kind in types)
        raise NotClasses(" in one file and ".join(words) + " in another")
    return next(iter(types), None)


def _words(column: Any) -> tuple[list[str | None], Numbers]:
    """Return the dictionary of a column of text, and the indices of the labels that are not null."""
    entries = column.dictionary.to_pylist()
    normal = [None if name is None else composed(name) for name in entries]
    return normal, column.indices.drop_null().to_numpy()


def _is_text(kind: Any) -> bool:
    """True for text, and for bytes, because some programs write text as bytes."""
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary")
