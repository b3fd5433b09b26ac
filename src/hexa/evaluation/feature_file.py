"""Files of features that `hexa embed` writes, and their reader, which takes files from anyone.

Arrays of a .npz, or columns of a .parquet: `features` [N, D] float32, `labels` [N] or [N, C] if there are any, `paths`
[N]. What `hexa search` needs beyond that, each optional:

    thumbnails     uint8 [N, 32, 32]  luminance of the whole image
    statistics     float32 [N, 12]    of the picture as a whole (`Appearance`)
    previews       uint8 [total]      JPEGs of at most 96 x 96 pixels, one after the other (Parquet: a binary column)
    preview_ends   int64 [N]          where each of them ends (not in Parquet)
    origin         text               JSON: backbone, its weights and preparation, data (Parquet: the schema's `hexa`)
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hexa.config import UserError, some, whole_characters
from hexa.runtime.resources import usable_memory

if TYPE_CHECKING:
    import pyarrow

Array = NDArray[Any]
Pixels = NDArray[np.uint8]

#: Side in pixels of thumbnails, which are compared.
THUMBNAIL = 32
#: Longer side in pixels of previews, which people look at.
PREVIEW = 96
#: Numbers that describe a picture as a whole; see `_statistics`.
STATISTICS = 12
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)

#: The share of the memory that the unpacked arrays of a file may take; the work takes as much again.
_SHARE = 4
#: Files that unpack to more than this many times their size are refused if they unpack to more than `_SMALL`.
_RATIO = 50
#: Bytes to which any file may unpack.
_SMALL = 256 * 1024**2
#: Rows of a Parquet file that are unpacked at a time; one if the first has more bytes than the file may have in all.
_BATCH = 16
#: Characters of the text of an array's origin, at most.
_ORIGIN = 100_000
#: Shapes of one row, and types, of the optional arrays of numbers.
_OPTIONAL: dict[str, tuple[tuple[int, ...], str]] = {
    "thumbnails": ((THUMBNAIL, THUMBNAIL), "u1"),
    "statistics": ((STATISTICS,), "f4"),
}
#: Features and statistics are smaller: float32 can sum their squares.
_LARGEST = 1e15


@dataclass(frozen=True)
class FeatureFile:
    """The content of a file of N >= 2 images. Optional arrays are None if the file does not have them."""

    path: Path
    features: NDArray[np.floating]
    paths: list[str]
    thumbnails: NDArray[np.uint8] | None = None
    statistics: NDArray[np.float32] | None = None
    previews: Sequence[bytes] | None = None
    origin: Mapping[str, Any] | None = None

    @property
    def pictures(self) -> tuple[NDArray[np.uint8], NDArray[np.float32]] | None:
        """Thumbnails and statistics, if the file has both."""
        if self.thumbnails is None or self.statistics is None:
            return None
        return self.thumbnails, self.statistics


@dataclass(frozen=True)
class Appearance:
    """The appearance of one image."""

    thumbnail: Pixels
    """uint8 [32, 32], the luminance of the whole image."""
    statistics: NDArray[np.float32]
    """float32 [12]."""
    preview: bytes
    """A JPEG of at most 96 × 96 pixels."""


def appearance_of(pixels: Pixels) -> Appearance:
    """The appearance of an image as people see it, uint8 [H, W, 3]."""
    image = Image.fromarray(pixels)
    thumbnail = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    grey = np.asarray(thumbnail, dtype=np.float32) @ _LUMA
    image.thumbnail((PREVIEW, PREVIEW), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=75)
    preview = file.getvalue()
    statistics = _statistics(np.asarray(image, dtype=np.float32), len(preview))
    return Appearance(grey.round().astype(np.uint8), statistics, preview)


def _statistics(pixels: NDArray[np.float32], num_bytes: int) -> NDArray[np.float32]:
    """Twelve numbers of a picture [H, W, 3] with values from 0 to 255.

    Means of red, green and blue; deviation of the luminance; logarithm of the mean step between neighbouring pixels,
    and of its ratio to that at half the size; mean and deviation of the saturation; entropy and largest bin of the
    histogram of the luminance in 32 bins; share of pixels that nearly equal the next one; logarithm of the size as a JPEG.
    """
    grey = pixels @ _LUMA
    fine = _mean_step(grey)
    half = Image.fromarray(grey).reduce(2)
    coarse = _mean_step(np.asarray(half))
    saturation = pixels.max(2) - pixels.min(2)
    levels = np.minimum(grey / 8, 31).astype(np.int64)
    histogram = np.bincount(levels.ravel(), minlength=32) / grey.size
    filled = histogram[histogram > 0]
    flat = (np.abs(np.diff(grey, axis=1)) < 1).mean() if grey.shape[1] > 1 else 1.0
    numbers = [
        *pixels.mean((0, 1)),
        grey.std(),
        np.log(fine + 0.1),
        np.log((fine + 0.1) / (coarse + 0.1)),
        saturation.mean(),
        saturation.std(),
        -(filled * np.log(filled)).sum(),
        histogram.max(),
        flat,
        np.log(num_bytes),
    ]
    return np.array(numbers, dtype=np.float32)


def _mean_step(grey: NDArray[np.float32]) -> float:
    """The mean absolute difference of horizontal and of vertical neighbours, added; 0 along a side of one pixel."""
    steps = [np.abs(np.diff(grey, axis=axis)) for axis in (0, 1)]
    return float(sum(one.mean() for one in steps if one.size))


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
    arrays = {"features": features, "paths": paths}
    if labels is not None:
        arrays["labels"] = labels
    if seen is not None:
        arrays["thumbnails"] = np.stack([one.thumbnail for one in seen])
        arrays["statistics"] = np.stack([one.statistics for one in seen])
    previews = [one.preview for one in seen or ()]
    described = "" if origin is None else json.dumps(origin)
    if suffix == ".parquet":
        _write_parquet(file, arrays, previews, described)
        return
    if previews:
        arrays["previews"] = np.frombuffer(b"".join(previews), np.uint8)
        arrays["preview_ends"] = np.cumsum([len(one) for one in previews])
    if described:
        arrays["origin"] = np.array(described)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_parquet(
    file: BinaryIO, arrays: Mapping[str, Array], previews: Sequence[bytes], described: str
) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {}
    for name, array in arrays.items():
        values = pyarrow.array(array.reshape(-1))
        if array.ndim > 1:
            width = math.prod(array.shape[1:])
            values = pyarrow.FixedSizeListArray.from_arrays(values, width)
        columns[name] = values
    if previews:
        columns["previews"] = pyarrow.array(previews, pyarrow.binary())
    table = pyarrow.table(columns)
    if described:
        table = table.replace_schema_metadata({"hexa": described})
    pyarrow.parquet.write_table(table, file)


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path | str) -> FeatureFile:
    """The content of a .npz or .parquet. Nothing is unpickled, and the bytes that it takes are bounded.

    Raises UserError for a file that cannot be read, is not of that kind, or unpacks to too much.
    """
    path = Path(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe may never end
            raise UserError("is not a regular file")
        read_arrays = _read_parquet if path.suffix == ".parquet" else _read_npz
        return _checked(path, read_arrays(path, status.st_size))
    except Exception as error:  # readers raise whatever Python does on damaged content
        kind = path.suffix if path.suffix in (".npz", ".parquet") else "file of features"
        why = getattr(error, "strerror", None) or f"not an intact {kind}"
        if isinstance(error, UserError):
            why = str(error)
        raise UserError(f"{path}: {why}; give a .npz or .parquet that hexa embed wrote") from None


def _bound(size: int, unpacked: int) -> None:
    """Raise UserError if a file of `size` bytes unpacks to too much."""
    most = usable_memory() // _SHARE
    if unpacked > max(_SMALL, _RATIO * size):
        raise UserError(f"{size:,} bytes unpack to {unpacked:,}, as no file of features does")
    if unpacked > most:
        raise UserError(f"unpacks to {unpacked:,} bytes, and {most:,} fit a quarter of the memory")


def _check_names(names: Sequence[str]) -> None:
    for name in ("features", "paths"):
        if name not in names:
            raise UserError(f"has no '{name}', but {some(names)}")


def _read_npz(path: Path, size: int) -> dict[str, Any]:
    wanted = ("features", "paths", *_OPTIONAL, "previews", "preview_ends", "origin")
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        _check_names([*members])
        chosen = {name: members[name] for name in wanted if name in members}
        _bound(size, sum(one.file_size for one in chosen.values()))
        for name, member in chosen.items():
            with archive.open(member) as file:
                try:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                except ValueError:
                    raise UserError(f"'{name}' in it is damaged or holds Python objects") from None
    if "previews" in arrays:
        arrays["previews"] = _split(arrays["previews"], arrays.pop("preview_ends"))
    return arrays


def _split(previews: Array, ends: Array) -> list[memoryview]:
    """Previews that stand one after the other. Raises UserError unless the ends, in order, are those of all bytes."""
    starts = np.append(0, ends[:-1])
    if previews.dtype != np.uint8 or (starts > ends).any() or ends[-1] != len(previews):
        raise UserError("'previews' are not what hexa embed writes")
    content = memoryview(previews.data)
    return [content[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _read_parquet(path: Path, size: int) -> dict[str, Any]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    names = file.schema_arrow.names
    _check_names(names)
    columns = [name for name in ("features", "paths", *_OPTIONAL, "previews") if name in names]
    first_row = next(file.iter_batches(1, columns=columns), None)
    if first_row is None:
        raise UserError("has no rows")
    rows = 1 if first_row.nbytes * _BATCH > _SMALL else _BATCH
    batches = []
    unpacked = 0
    for batch in file.iter_batches(rows, columns=columns):
        unpacked += batch.nbytes
        _bound(size, unpacked)
        batches.append(batch)
    table = pyarrow.Table.from_batches(batches).combine_chunks()
    arrays: dict[str, Any] = {name: _column(name, table.column(name).chunk(0)) for name in columns}
    for name, (shape, _) in _OPTIONAL.items():
        if name in arrays and arrays[name].shape[1] == math.prod(shape):
            arrays[name] = arrays[name].reshape(-1, *shape)
    metadata = file.schema_arrow.metadata or {}
    if b"hexa" in metadata:
        arrays["origin"] = np.array(metadata[b"hexa"].decode(errors="replace"))
    return arrays


def _column(name: str, column: pyarrow.Array) -> Array:
    """The values of a part of a column: texts or bytes [n], or numbers [n, width]."""
    if column.null_count:
        raise UserError(f"the column '{name}' has rows without a value")
    if name == "previews":
        column = column.cast("binary")
    if name in ("paths", "previews"):
        # objects: an array of characters would give every row the length of the longest
        return np.array(column.to_pylist(), dtype=object)
    if not hasattr(column, "value_lengths"):
        raise UserError(f"the column '{name}' is of type {column.type}, not lists of numbers")
    lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) != 1:
        raise UserError(f"rows of the column '{name}' differ in length")
    values: Array = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), int(lengths[0]))


def _checked(path: Path, arrays: dict[str, Any]) -> FeatureFile:
    features = arrays["features"]
    names = arrays.pop("paths")
    given = f"features are {features.dtype} of shape {features.shape}"
    if features.dtype.kind != "f" or features.ndim != 2 or not features.shape[1]:
        raise UserError(f"{given}; expected floats of shape [N, D]")
    # float16 cannot hold `_LARGEST`, nor sums of squares
    arrays["features"] = features.astype(np.result_type(features.dtype, np.float32), copy=False)
    count = len(features)
    if count < 2:
        raise UserError(f"holds {count} images; a search needs two or more")
    if names.dtype.kind not in "USO" or names.shape != (count,):
        raise UserError(
            f"{given}, and paths {names.dtype} of shape {names.shape}; expected texts [N]"
        )
    paths = [
        one.decode(errors="backslashreplace")
        if isinstance(one, bytes)
        else whole_characters(str(one))
        for one in names.tolist()
    ]
    for name, (shape, kind) in _OPTIONAL.items():
        array = arrays.get(name)
        if array is not None and (array.shape != (count, *shape) or array.dtype != np.dtype(kind)):
            raise UserError(f"'{name}' are {array.dtype} of shape {array.shape}")
    for name in {"features", "statistics"} & arrays.keys():
        lost = np.flatnonzero(~(np.abs(arrays[name]) < _LARGEST).all(1))
        if len(lost):
            raise UserError(
                f"{name} of {len(lost):,} of {count:,} images are not finite or too large, such "
                f"as those of {paths[lost[0]]}"
            )
    if len(arrays.get("previews", paths)) != count:
        raise UserError("'previews' are not one for each image")
    return FeatureFile(path, paths=paths, origin=_origin(arrays.pop("origin", None)), **arrays)


def _origin(text: Array | None) -> dict[str, Any] | None:
    """Return the origin of the features; None if the file has none that can be read."""
    if text is None or text.ndim or text.dtype.kind != "U" or text.dtype.itemsize > 4 * _ORIGIN:
        return None
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
