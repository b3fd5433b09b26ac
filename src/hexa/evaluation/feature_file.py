"""Files of features that `hexa embed` writes, and their reader, which takes files from anyone.

Arrays of a .npz, or columns of a .parquet: `features` [N, D] float32, `labels` [N] or [N, C] if there are any, `paths`
[N]. What `hexa search` needs beyond that, each optional:

    digests        uint8 [N, 16]      equal for equal pixels
    thumbnails     uint8 [N, 32, 32]  grey levels of the whole image
    statistics     float32 [N, 12]    of the picture as a whole (`appearance`)
    previews       uint8 [total]      JPEGs of at most 96 x 96 pixels, one after the other (Parquet: a binary column)
    preview_ends   int64 [N]          where each of them ends (not in Parquet)
    origin         text               JSON: backbone, its weights and preparation, data (Parquet: the schema's `hexa`)
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hexa.config import UserError, some, whole_characters
from hexa.evaluation.appearance import DIGEST, STATISTICS, THUMBNAIL, Appearance
from hexa.runtime.memory import usable_memory

if TYPE_CHECKING:
    import pyarrow

Array = NDArray[Any]

#: The share of the memory that the unpacked arrays of a file may take; the work takes as much again.
_SHARE = 4
#: Files that unpack to more than this many times their size are refused if they unpack to more than `_SMALL`.
_RATIO = 50
#: Bytes to which any file may unpack.
_SMALL = 256 * 1024**2
#: Rows of a Parquet file that are unpacked at a time; one if the first has more bytes than the file may have in all.
_BATCH = 16
#: Characters of an array's header, at most.
_HEADER = 10_000
#: Characters of the text of an array's origin, at most.
_ORIGIN = 100_000
#: Shapes of one row, and types, of the optional arrays.
_OPTIONAL: dict[str, tuple[tuple[int, ...], str]] = {
    "digests": ((DIGEST,), "u1"),
    "thumbnails": ((THUMBNAIL, THUMBNAIL), "u1"),
    "statistics": ((STATISTICS,), "f4"),
}
#: Features and statistics are smaller.
_LARGEST = 1e15
_REMEDY = "give a .npz or .parquet that hexa embed wrote"


class _Other(ValueError):
    """The file is not what is expected; the message says why."""


@dataclass(frozen=True)
class FeatureFile:
    """The content of a file of N >= 2 images. Optional arrays are None if the file does not have them."""

    path: Path
    features: NDArray[np.floating]
    paths: list[str]
    digests: NDArray[np.uint8] | None = None
    thumbnails: NDArray[np.uint8] | None = None
    statistics: NDArray[np.float32] | None = None
    previews: NDArray[np.uint8] | None = None
    preview_ends: NDArray[np.int64] | None = None
    origin: Mapping[str, Any] | None = None

    def preview(self, place: int) -> bytes | None:
        """The JPEG of an image, if the file has previews."""
        if self.previews is None or self.preview_ends is None:
            return None
        start = self.preview_ends[place - 1] if place else 0
        return self.previews[start : self.preview_ends[place]].tobytes()


# -- writing ----------------------------------------------------------------------------------------------------------


def write(
    file: BinaryIO,
    suffix: str,
    features: Array,
    labels: Array | None,
    paths: Array,
    seen: Sequence[Appearance] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a .npz or .parquet. seen: the appearance of each image; None leaves it out."""
    if suffix == ".parquet":
        _write_parquet(file, features, labels, paths, seen, origin)
        return
    arrays = {"features": features, "paths": paths}
    if labels is not None:
        arrays["labels"] = labels
    if seen is not None:
        arrays["digests"] = np.frombuffer(b"".join(one.digest for one in seen), np.uint8).reshape(
            -1, DIGEST
        )
        arrays["thumbnails"] = np.stack([one.thumbnail for one in seen])
        arrays["statistics"] = np.stack([one.statistics for one in seen])
        arrays["previews"] = np.frombuffer(b"".join(one.preview for one in seen), np.uint8)
        arrays["preview_ends"] = np.cumsum([len(one.preview) for one in seen])
    if origin is not None:
        arrays["origin"] = np.array(json.dumps(origin))
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_parquet(
    file: BinaryIO,
    features: Array,
    labels: Array | None,
    paths: Array,
    seen: Sequence[Appearance] | None,
    origin: Mapping[str, Any] | None,
) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(features.reshape(-1)), features.shape[1]
    )
    known = {} if labels is None else {"labels": pyarrow.array(list(labels))}
    table = pyarrow.table({"features": rows, "paths": pyarrow.array(paths), **known})
    if seen is not None:
        kept = {
            "digests": [one.digest for one in seen],
            "thumbnails": [one.thumbnail.tobytes() for one in seen],
            "statistics": [one.statistics.tobytes() for one in seen],
            "previews": [one.preview for one in seen],
        }
        for name, values in kept.items():
            table = table.append_column(name, pyarrow.array(values, pyarrow.binary()))
    if origin is not None:
        table = table.replace_schema_metadata({"hexa": json.dumps(origin)})
    pyarrow.parquet.write_table(table, file)


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path | str) -> FeatureFile:
    """The content of a .npz or .parquet. Nothing is unpickled, and the bytes that it takes are bounded.

    Raises UserError for a file that cannot be read, is not of that kind, or unpacks to too much.
    """
    path = Path(path)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise _Other("is a folder")
        if not stat.S_ISREG(status.st_mode):  # reading a pipe may never end
            raise _Other("is not a regular file")
        if path.suffix == ".parquet":
            arrays = _read_parquet(path, status.st_size)
        else:
            arrays = _read_npz(path, status.st_size)
        return _checked(path, arrays)
    except (_Other, OSError, zipfile.BadZipFile, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{path}: {why or 'cannot be read'}; {_REMEDY}") from None


def _bound(size: int, unpacked: int) -> None:
    """Raise _Other if a file of `size` bytes unpacks to too much."""
    most = usable_memory() // _SHARE
    if unpacked > max(_SMALL, _RATIO * size):
        raise _Other(f"{size:,} bytes unpack to {unpacked:,}, as no file of features does")
    if unpacked > most:
        raise _Other(f"unpacks to {unpacked:,} bytes, and {most:,} fit a quarter of the memory")


def _read_npz(path: Path, size: int) -> dict[str, Any]:
    if path.suffix == ".npy":
        raise _Other("holds one array, such as feature maps, and no features and paths")
    wanted = ("features", "paths", *_OPTIONAL, "previews", "preview_ends", "origin")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            if missing := [name for name in wanted[:2] if name not in members]:
                has = f"only {some(members)}" if members else "nothing"
                raise _Other(f"has no array '{missing[0]}', but {has}")
            chosen = {name: members[name] for name in wanted if name in members}
            _bound(size, sum(one.file_size for one in chosen.values()))
            return {name: _array(archive, name, one) for name, one in chosen.items()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _Other(f"not an intact .npz ({' '.join(str(error).split())})") from None


def _array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> Array:
    """An array of an archive; its header is checked before memory is taken for it."""
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            headers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            shape, column_major, dtype = headers[version](file, max_header_size=_HEADER)
        except Exception:  # numpy's parser raises whatever Python's does on damaged text
            raise _Other(f"'{name}' in it is not an array of numpy") from None
        if dtype.hasobject:
            raise _Other(f"'{name}' in it holds Python objects, which are never loaded")
        expected = math.prod(shape) * dtype.itemsize
        if any(side < 0 for side in shape) or expected != member.file_size - file.tell():
            raise _Other(f"'{name}' in it is cut off or damaged")
        content = np.frombuffer(file.read(expected), dtype, count=math.prod(shape))
    return content.reshape(shape, order="F" if column_major else "C")


def _read_parquet(path: Path, size: int) -> dict[str, Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        for name in ("features", "paths"):
            if name not in names:
                raise _Other(f"has no column '{name}', but only {some(names)}")
        features = file.schema_arrow.field("features").type
        kinds = pyarrow.types
        lists = (kinds.is_fixed_size_list, kinds.is_list, kinds.is_large_list)
        if not any(check(features) for check in lists) or not kinds.is_floating(
            features.value_type
        ):
            raise _Other(f"the column 'features' is of type {features}, not lists of floats")
        columns = [name for name in ("features", "paths", *_OPTIONAL, "previews") if name in names]
        parts: dict[str, list[Any]] = {name: [] for name in columns}
        unpacked = 0
        first_row = next(file.iter_batches(1, columns=columns), None)
        rows = 1 if first_row is not None and first_row.nbytes * _BATCH > _SMALL else _BATCH
        for batch in file.iter_batches(rows, columns=columns):
            unpacked += batch.nbytes
            _bound(size, unpacked)
            for name in columns:
                parts[name].append(_column(name, batch.column(name)))
        metadata = file.schema_arrow.metadata or {}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise _Other("not an intact .parquet") from None
    if not parts["paths"]:
        raise _Other("has no rows")
    if len({part.shape[1] for part in parts["features"]}) > 1:
        raise _Other("rows of the column 'features' differ in length")
    arrays: dict[str, Any] = {
        name: np.concatenate(blocks) for name, blocks in parts.items() if name != "previews"
    }
    if "previews" in parts:
        previews = [one for block in parts["previews"] for one in block]
        arrays["previews"] = np.frombuffer(b"".join(previews), np.uint8)
        arrays["preview_ends"] = np.cumsum([len(one) for one in previews])
    if b"hexa" in metadata:
        arrays["origin"] = np.array(metadata[b"hexa"].decode(errors="replace"))
    return arrays


def _column(name: str, column: pyarrow.Array) -> Any:
    """The values of a part of a column: [n, …] or, of previews, a list."""
    if column.null_count:
        raise _Other(f"the column '{name}' has rows without a value")
    if name == "paths":
        # objects: an array of characters would give every row the length of the longest
        return np.array([str(one) for one in column.to_pylist()], dtype=object)
    if name == "previews":
        return column.to_pylist()
    if name == "features":
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) != 1:
            raise _Other("rows of the column 'features' differ in length")
        values = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), int(lengths[0]))
    shape, kind = _OPTIONAL[name]
    rows = column.to_pylist()
    length = math.prod(shape) * np.dtype(kind).itemsize
    if any(not isinstance(one, bytes) or len(one) != length for one in rows):
        raise _Other(f"rows of the column '{name}' are not what hexa embed writes")
    return np.frombuffer(b"".join(rows), kind).reshape(-1, *shape)


def _checked(path: Path, arrays: dict[str, Any]) -> FeatureFile:
    features = arrays["features"]
    names = arrays["paths"]
    given = f"features are {features.dtype} of shape {features.shape}"
    if features.dtype.kind != "f" or features.ndim != 2 or not features.shape[1]:
        raise _Other(f"{given}; expected floats of shape [N, D]")
    if names.dtype.kind not in "USO" or names.shape != features.shape[:1]:
        raise _Other(
            f"{given}, and paths {names.dtype} of shape {names.shape}; expected a text for each row"
        )
    if len(features) < 2:
        raise _Other(f"holds {len(features)} images; a search needs two or more")
    listed = [
        one.decode(errors="backslashreplace") if isinstance(one, bytes) else whole_characters(one)
        for one in names.tolist()
    ]
    lost = np.flatnonzero(~_usable(features).all(1))
    if len(lost):
        raise _Other(
            f"features of {len(lost):,} of {len(features):,} images are not finite or too large, such as "
            f"those of {listed[lost[0]]}"
        )
    for name, (shape, kind) in _OPTIONAL.items():
        if name in arrays:
            array = arrays[name]
            if array.shape != (len(features), *shape) or array.dtype != np.dtype(kind):
                raise _Other(f"'{name}' are {array.dtype} of shape {array.shape}")
    if "statistics" in arrays and not _usable(arrays["statistics"]).all():
        raise _Other("'statistics' are not finite or too large")
    _check_previews(arrays, len(features))
    origin = _origin(arrays.pop("origin", None))
    arrays.pop("paths")
    return FeatureFile(path, paths=listed, origin=origin, **arrays)


def _usable(values: Array) -> NDArray[np.bool_]:
    """False for numbers that are not finite, and those whose squares float32 cannot sum."""
    usable: NDArray[np.bool_] = np.abs(values) < _LARGEST
    return usable


def _check_previews(arrays: dict[str, Any], count: int) -> None:
    if ("previews" in arrays) != ("preview_ends" in arrays):
        raise _Other("'previews' and 'preview_ends' go together")
    if "previews" in arrays:
        previews = arrays["previews"]
        ends = arrays["preview_ends"]
        shapes = previews.dtype == np.uint8 and previews.ndim == 1 and ends.shape == (count,)
        if not shapes or ends.dtype != np.int64 or ends[0] < 0 or (np.diff(ends) < 0).any():
            raise _Other("'previews' are not what hexa embed writes")
        if ends[-1] != len(previews):
            raise _Other("'previews' are cut off")


def _origin(text: Array | None) -> dict[str, Any] | None:
    """Return the origin of the features; None if the file has none that can be read."""
    if text is None or text.ndim or text.dtype.kind != "U" or text.dtype.itemsize > 4 * _ORIGIN:
        return None
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
