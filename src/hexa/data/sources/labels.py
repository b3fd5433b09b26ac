"""Turns a column of labels of any source into class numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: Names of label columns, preferred ones first.
COLUMNS = ("label", "labels", "fine_label", "class", "target")
_TEXT = pa.dictionary(pa.int32(), pa.large_string())


class NotClasses(Exception):
    """A column that cannot be classes; the message is what it holds."""


def composed(name: str) -> str:
    """A name in the normal form NFC, so that names match whatever form a file system or a program gave them."""
    return unicodedata.normalize("NFC", name)


def are_classes(kind: Any) -> bool:
    """True if values of this Arrow type can be classes: integers, booleans, text, or dictionaries of these."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return _is_text(kind) or any(
        check(kind) for check in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    )


def column_of(types: dict[str, Any]) -> tuple[str | None, str]:
    """The label column by the names and Arrow types of all columns, and why there is none although one has the name."""
    named = [name for name in COLUMNS if name in types]
    for name in named:
        if are_classes(types[name]):
            return name, ""
    if not named:
        return None, ""
    return None, not_classes(f"column '{named[0]}'", types[named[0]])


def not_classes(what: str, kind: object) -> str:
    """The sentence on labels that cannot be classes."""
    return f"the {what} holds {kind}, which cannot be a class; classes are integers, booleans or text"


def of_values(values: Sequence[object]) -> Any:
    """Labels as an Arrow array, None for a missing one; text if some are numbers. Raises NotClasses."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, str}:
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        raise NotClasses(" and ".join(sorted(kind.__name__ for kind in kinds))) from None


def plain(column: Any) -> Any:
    """A column of labels as integers, booleans, or a dictionary of text, as a chunked array. Raises NotClasses."""
    kind = column.type
    if not are_classes(kind):
        raise NotClasses(str(kind))
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_dictionary(kind) and not _is_text(kind.value_type):
        chunks = [chunk.dictionary_decode() for chunk in chunks]
        return pa.chunked_array(chunks, kind.value_type)
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.chunked_array(chunks, kind)
    # a dictionary stays one: a short file may hold a long text a million times
    chunks = [chunk if pa.types.is_dictionary(kind) else chunk.dictionary_encode() for chunk in chunks]
    try:
        return pa.chunked_array([chunk.cast(_TEXT) for chunk in chunks], _TEXT)
    except pa.ArrowException:
        raise NotClasses(f"{kind} that is not text") from None


def numbered(
    column: Any, others: Callable[[], Iterable[Any]] = tuple
) -> tuple[NDArray[Any], list[str] | None]:
    """Class numbers of the labels that are not null, and the names of the classes, None for integers.

    Integers stay as they are, False and True are 0 and 1, and text is numbered by its sorted names, over this column
    and those that `others` returns: the labels of the other splits. Raises NotClasses.
    """
    column = plain(column)
    if column.type != _TEXT:
        names = ["False", "True"] if pa.types.is_boolean(column.type) else None
        values = column.drop_null().to_numpy()
        return (values if names is None else values.astype(np.int64)), names
    columns = [column, *map(plain, others())]
    for other in columns:
        if other.type != _TEXT and other.null_count < len(other):
            raise NotClasses(f"text in one split and {other.type} in another")
    names = sorted({name for other in columns for name in _names(other)})
    number = {name: place for place, name in enumerate(names)}
    parts = [np.zeros(0, np.int64)]
    for chunk in column.chunks:
        known = chunk.drop_null()
        of_entry = [number.get(name, -1) for name in _composed(known.dictionary)]
        parts.append(np.array(of_entry, np.int64)[known.indices.to_numpy()])
    return np.concatenate(parts), names


def _names(column: Any) -> Iterable[str]:
    """The names that occur in a column of text."""
    for chunk in column.chunks if column.type == _TEXT else ():
        every = _composed(chunk.dictionary)
        used = (every[place] for place in chunk.indices.drop_null().unique().to_pylist())
        yield from (name for name in used if name is not None)


def _composed(dictionary: Any) -> list[str | None]:
    return [None if name is None else composed(name) for name in dictionary.to_pylist()]


def _is_text(kind: Any) -> bool:
    """True for text, and for bytes, which some programs write text as."""
    return any(
        check(kind)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )
