"""Parquet files in Hugging Face's layout."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hexa.config import UserError, nearest, some
from hexa.data.sources import decode as decoding
from hexa.data.sources.kinds import kind_of
from hexa.data.sources.labels import column_of
from hexa.data.sources.source import (
    SPLIT_NAMES,
    Source,
    by_split,
    digest,
    files_by_prefix,
    location,
    reported,
    sample,
)
from hexa.runtime.memory import usable_memory
from hexa.runtime.paths import Inside

#: Rows that are unpacked together.
_ROWS = 16
#: If the largest value may have more bytes than this, rows are unpacked one by one.
_LARGE = 64 << 20
#: Bytes of a row group that are joined, which takes as much again.
_JOINED = 256 << 20
#: Rows that are looked at to tell whether a column has images.
_LOOKED_AT = 20


class ParquetSource(Source):
    """A column with the bytes of image files, in a struct or alone, and optionally a label column.

    A folder has train.parquet and test.parquet, or train-00000-of-00002.parquet …; a single file is one split. The
    encoded images are kept in memory, at most as many bytes as the name says: PATH,bytes=N. Without N, all Parquet
    sources of the process, such as the splits of one, may take half of the memory together. UserError if a split
    unpacks to more; an image of more than a gigabyte is unreadable.
    """

    _read_from: list[Path]

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        option = (
            None
            if location(argument).exists()
            else re.fullmatch(r"(.*),bytes=(\d{1,18})", argument)
        )
        if option is not None:
            argument = option[1]
        self._most = int(option[2]) if option else half_of_memory()
        self._held = 0 if option else pa.total_allocated_bytes()
        root = location(argument)
        if not argument or not root.exists():
            where = f": {root}" if argument else ""
            raise UserError(f"data '{spec}': no such file or folder{where}; write parquet:PATH")
        self._example = f"parquet:{argument},bytes={2 * self._most}"
        files = _files(root, spec)
        inside = Inside(spec, root)
        for of_split in files.values():
            inside.check(map(str, of_split), "the folder")
        self._read_from = self._open_split(spec, split, files)
        with reported(f"data '{spec}': cannot read {some(self._read_from)}"):
            schema = pq.read_schema(self._read_from[0])
            types = {field.name: field.type for field in schema}
            image = self._image_column(types)
            label, self.unfit_labels = column_of(types)
            table = self._table([image])
            footers = [pq.read_metadata(file) for file in self._read_from]
        if not len(table):
            raise UserError(f"data '{spec}': no images in {self._read_from[0]}")
        chunks = table.column(image).chunks
        in_struct = pa.types.is_struct(types[image])
        self._bytes = pa.chunked_array(
            [chunk.field("bytes") if in_struct else chunk for chunk in chunks]
        )
        names = [name for chunk in chunks for name in _names(chunk)]
        self.paths = [name or f"{self.split}/{number:08d}" for number, name in enumerate(names)]
        if label is not None:
            rest = [file for name in files if name != self.split for file in files[name]]
            with reported(f"data '{spec}': cannot read the column '{label}'"):
                self._number_labels(
                    f"column '{label}'",
                    self._columns(label, self._read_from),
                    self._columns(label, rest),
                    class_names(schema, label),
                )
        sizes = [chunk.nbytes for chunk in self._bytes.chunks]
        stamps = [str(_stamp(footer)) for footer in footers]
        self.fingerprint = digest(
            str(len(table)),
            str(sum(sizes)),
            *stamps,
            samples=itertools.chain(sample(len(self), self.encoded), [b"\0"]),
            separator=b"",
        )

    def _image_column(self, types: Mapping[str, Any]) -> str:
        """The column of images: the only struct of bytes, or the first column of structs or bytes that has images.

        Raises UserError if there is none.
        """
        structs = [name for name, kind in types.items() if _holds_files(kind)]
        candidates = [*structs, *(name for name, kind in types.items() if _is_binary(kind))]
        for name in candidates:
            if len(structs) == 1 or self._has_images(name):
                return name
        if structs:
            return structs[0]
        lists = [name for name, kind in types.items() if _is_list_of_files(kind)]
        if lists:
            wrong = f"the column '{lists[0]}' holds lists of images"
            raise UserError(
                f"data '{self.name}': {wrong}; store one image a row, as explode of pandas does"
            )
        expected = "bytes of image files, or a struct with a binary field 'bytes'"
        held = some((f"{name} ({kind})" for name, kind in types.items()), most=20)
        raise UserError(f"data '{self.name}': no image column ({expected}); its columns: {held}")

    def _has_images(self, column: str) -> bool:
        """True if one of the first values of a column, bytes alone or in a struct, is an image."""
        rows = pq.ParquetFile(self._read_from[0]).iter_batches(1, columns=[column])
        for row in itertools.islice(rows, _LOOKED_AT):
            value = row.column(0)[0].as_py()
            data = value.get("bytes") if isinstance(value, dict) else value
            if data is not None and kind_of(data) is not None:
                return True
        return False

    def _columns(self, name: str, files: Iterable[Path]) -> Iterator[Any]:
        """The column called `name` of each of these files that has it, in parts."""
        for file in files:
            if name in pq.read_schema(file).names:
                for part in self._parts([file], [name]):
                    part.validate(full=True)
                    yield part.column(name)

    def _parts(self, files: list[Path], columns: list[str]) -> Iterator[Any]:
        remedy = f"allow more with {self._example}"
        return unpacked(files, columns, self._most, f"data '{self.name}'", remedy, self._held)

    def _table(self, columns: list[str]) -> Any:
        """These columns of all files of the split, validated. Raises whatever pyarrow raises on damaged files."""
        # permissive: files may mix 32-bit and 64-bit numbers, or short and long offsets
        parts = self._parts(self._read_from, columns)
        table = pa.concat_tables(parts, promote_options="permissive")
        table.validate(full=True)
        return table

    def metadata(self, kind: str, name: str) -> list[str | None]:
        if kind != "column":
            return super().metadata(kind, name)
        with reported(f"data '{self.name}': the column '{name}' cannot be read as numbers or text"):
            if name not in (columns := pq.read_schema(self._read_from[0]).names):
                raise UserError(
                    f"data '{self.name}': has no column '{name}'; {nearest(name, columns)}"
                )
            values: list[str | None] = (
                self._table([name]).column(name).cast(pa.string()).to_pylist()
            )
        return values

    def encoded(self, index: int) -> bytes:
        data = self._bytes[index].as_py()
        if data is None:
            raise decoding.DecodeError("no bytes in this row")
        if len(data) > decoding.MOST_BYTES:
            raise decoding.DecodeError(decoding.too_large(len(data)))
        return bytes(data)


def _files(root: Path, spec: str) -> dict[str, list[Path]]:
    """{split: its files}. Raises UserError if there are none."""
    files = (
        [root]
        if root.is_file()
        else sorted(file for file in root.rglob("*.parquet") if file.is_file())
    )
    if not files:
        expected = "train.parquet, or train-00000-of-00001.parquet and so on"
        raise UserError(f"data '{spec}': no .parquet files in {root}; expected {expected}")
    groups = files_by_prefix(files)
    if root.is_file() and not set(groups) & set(SPLIT_NAMES):
        return {"train": files}
    return {split: groups[name] for split, name in by_split(groups).items()}


def _names(chunk: Any) -> list[str | None]:
    """The name of each image, None where the file has none."""
    if not pa.types.is_struct(chunk.type):
        return [None] * len(chunk)
    at = chunk.type.get_field_index("path")
    is_text = at >= 0 and (
        pa.types.is_string(chunk.type[at].type) or pa.types.is_large_string(chunk.type[at].type)
    )
    return chunk.field(at).to_pylist() if is_text else [None] * len(chunk)


def _stamp(footer: Any) -> list[tuple[int, int]]:
    """The rows and bytes of each row group."""
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return [(group.num_rows, group.total_byte_size) for group in groups]


def half_of_memory() -> int:
    """Bytes of half the memory of the machine, or of the container."""
    return usable_memory() // 2


def unpacked(
    files: list[Path],
    columns: list[str] | None,
    most: int,
    what: str,
    remedy: str,
    held: int = 0,
) -> Iterator[Any]:
    """These columns (None: all) of the files, a table for each row group, or several if that is large.

    A file of kilobytes can unpack to gigabytes, and claim that it does not, so a few rows are unpacked at a time and
    counted; one, where the first is large. UserError if there are more than `most` bytes, `held` ones included.
    """
    left = most - held
    for path in files:
        file = pq.ParquetFile(path)
        empty = file.schema_arrow.empty_table()
        empty = empty if columns is None else empty.select(columns)
        yield empty
        for number in range(file.num_row_groups):
            first = next(file.iter_batches(1, row_groups=[number], columns=columns), None)
            said = file.metadata.row_group(number).total_byte_size
            rows = (
                _ROWS
                if max(said, _ROWS * (first.nbytes if first is not None else 0)) <= _LARGE
                else 1
            )
            batches: list[Any] = []
            unjoined = 0
            for batch in file.iter_batches(rows, row_groups=[number], columns=columns):
                left -= batch.nbytes
                if left < 0:
                    taken = f" in addition to {held:,} that are in use" if held > most // 10 else ""
                    raise UserError(
                        f"{what}: {path} unpacks to more than {most:,} bytes, the limit{taken}; {remedy}"
                    )
                if batches and unjoined + batch.nbytes > _JOINED:
                    joined = pa.Table.from_batches(batches, empty.schema).combine_chunks()
                    batches = []
                    unjoined = 0
                    yield joined
                batches.append(batch)
                unjoined += batch.nbytes
            yield pa.Table.from_batches(batches, empty.schema).combine_chunks()


def class_names(schema: Any, label: str) -> list[str] | None:
    """The class names in Hugging Face's metadata, if there are any."""
    with suppress(
        ValueError, TypeError, KeyError, RecursionError
    ):  # the metadata may hold anything
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
        if isinstance(names, dict):  # some writers use {number: name}
            names = [names[key] for key in sorted(names, key=int)]
        return [str(name) for name in names] if isinstance(names, list) else None
    return None


def _holds_files(column: Any) -> bool:
    """True if a column of this type is a struct that has a binary field `bytes`."""
    if not pa.types.is_struct(column) or column.get_field_index("bytes") < 0:
        return False
    return _is_binary(column.field("bytes").type)


def _is_list_of_files(column: Any) -> bool:
    is_list = pa.types.is_list(column) or pa.types.is_large_list(column)
    return is_list and (_holds_files(column.value_type) or _is_binary(column.value_type))


def _is_binary(kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        check(value)
        for check in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_binary_view,
        )
    )
