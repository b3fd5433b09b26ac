"""Feature maps of every image as a file, written batch by batch: for segmentation, or for defects in large images."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.runtime.files import write_whole

Array = NDArray[Any]
#: Maps [b, C, h, w], labels [b] or [b, classes] or None, and paths [b] of some images.
Part = tuple[Array, Array | None, list[str]]


def beside(out: Path) -> Path:
    """Where the labels and paths of maps in a .npy file lie: MAPS.images.npz."""
    return out.with_suffix(".images.npz")


def write(out: Path, parts: Iterable[Part], most: int, precision: str) -> tuple[int, ...]:
    """Write the maps of at most `most` images to `out` atomically and return their shape (N, C, h, w).

    .npy: one array [N, C, h, w], which numpy.load(mmap_mode="r") opens without reading it; labels and paths lie in
    `beside(out)`. .parquet: columns `maps` (a tensor of fixed shape: a list of C·h·w numbers), `paths` and, where there
    are any, `labels`. Only one part is in memory at a time. Raises UserError if they differ in shape, are more
    than the precision holds, or than the disk.
    """
    shapes: list[tuple[int, ...]] = []
    parts = _alike(parts, precision, shapes)
    if out.suffix == ".parquet":
        write_whole(out, lambda file: _write_parquet(file, parts))
    else:
        known: dict[str, list[Any]] = {"labels": [], "paths": []}
        write_whole(out, lambda file: _write_npy(file, parts, most, known))
        arrays = {name: np.array(values) for name, values in known.items() if values}
        write_whole(beside(out), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _alike(parts: Iterable[Part], precision: str, shapes: list[tuple[int, ...]]) -> Iterator[Part]:
    """The parts in this precision; `shapes` collects theirs."""
    for maps, labels, paths in parts:
        with np.errstate(over="ignore"):
            kept = np.ascontiguousarray(maps.astype(precision))
        if not np.isfinite(kept).all():
            raise UserError(
                f"maps of {paths[0]} or the images after it exceed {precision}; take float32"
            )
        if shapes and kept.shape[1:] != shapes[0][1:]:
            differ = f"{_shown(kept.shape)} after {_shown(shapes[0])}"
            raise UserError(
                f"maps of {paths[0]} are {differ}, and a file holds one shape; leave out --aspect keep"
            )
        shapes.append(kept.shape)
        yield kept, labels, paths


def _shown(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape[1:]))


def _write_npy(
    file: BinaryIO, parts: Iterable[Part], most: int, known: dict[str, list[Any]]
) -> None:
    """An array whose length is known at its end. Not through a map of the file: a full disk would end the process."""
    header: dict[str, Any] = {}
    for maps, labels, paths in parts:
        if not header:
            free = shutil.disk_usage(Path(file.name).parent).free
            needed = most * maps[0].nbytes
            if needed > free:
                sizes = f"{needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
                raise UserError(
                    f"{most:,} maps of {_shown(maps.shape)} take {sizes}; make room, or take another disk"
                )
            header = {"descr": np.lib.format.dtype_to_descr(maps.dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, header | {"shape": (most, *maps.shape[1:])})
            start = file.tell()
        file.write(maps.data)
        known["paths"] += paths
        known["labels"] += [] if labels is None else list(labels)
    file.seek(0)  # numpy leaves room in the header for any length
    np.lib.format.write_array_header_1_0(
        file, header | {"shape": (len(known["paths"]), *maps.shape[1:])}
    )
    assert file.tell() == start, "numpy's headers have one length"


def columns(
    name: str, rows: pyarrow.Array, labels: Array | None, paths: Sequence[str] | Array
) -> pyarrow.Table:
    """A table for .parquet: a column `name` of rows, one of paths and, if there are labels, one of these."""
    known = {} if labels is None else {"labels": pyarrow.array(list(labels))}
    return pyarrow.table({name: rows, "paths": pyarrow.array(paths), **known})


def _write_parquet(file: BinaryIO, parts: Iterable[Part]) -> None:
    writer = None
    for maps, labels, paths in parts:
        table = columns(
            "maps", pyarrow.FixedShapeTensorArray.from_numpy_ndarray(maps), labels, paths
        )
        writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    assert writer is not None, "there are maps"
    writer.close()
