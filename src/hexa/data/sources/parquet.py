"""Reads Parquet files in the layout of Hugging Face."""

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
from hexa.data.sources.labels import column_of
from hexa.data.sources.source import Source, digest, reported, sample
from hexa.data.sources.splits import files_by_split, named_parts, split_of
from hexa.runtime.paths import Inside, location
from hexa.runtime.resources import usable_memory

#: Number of rows that are unpacked together.
_ROWS = 16
#: If a batch of rows may exceed this number of bytes, rows are unpacked one by one.
_LARGE = 64 << 20
#: Maximum number of bytes that are joined at a time, because joining takes the same memory again.
_JOINED = 256 << 20
#: Factor by which sizes in the footer, with the headers of pages, may exceed those in memory.
_HEADERS = 1.1
#: Number of rows that are searched for images.
_LOOKED_AT = 20


class ArrowSource(Source):
    """A source of image files in an Arrow column of bytes, or of structs of `bytes` and optionally `path`."""

    _bytes: Any

    def _take_images(self, column: Any) -> list[str | None]:
        """Store the bytes and set `paths`; return the name in each row, None if it is missing."""
        is_struct = pa.types.is_struct(column.type)
        chunks = column.chunks
        parts = [chunk.field("bytes") if is_struct else chunk for chunk in chunks]
        self._bytes = pa.chunked_array(parts)
        names = [name for chunk in chunks for name in _names(chunk)]
        self.paths = [name or f"{self.split}/{number:08d}" for number, name in enumerate(names)]
        return names

    def encoded(self, index: int) -> bytes:
        data = self._bytes[index].as_py()
        if data is None:
            raise decoding.DecodeError("no bytes in this row")
        decoding.check_bytes(len(data))
        return bytes(data)


class ParquetSource(ArrowSource):
    """Parquet files with a column of image files (bytes, or structs with bytes) and optionally a label column.

    Files are named train.parquet and test.parquet, train-00000-of-00002.parquet or otherwise (`files_by_split`). Encoded
    images are kept in memory, at most N bytes for PATH,bytes=N. Without N, all Parquet sources of the process together
    may use half of the memory. Raises UserError if a split unpacks to more. An image of more than a gigabyte is
    unreadable.
    """

    _read_from: list[Path]

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        self._most = max(0, usable_memory() // 2 - pa.total_allocated_bytes())
        option = re.fullmatch(r"(.*),bytes=(\d{1,18})", argument)
        if option is not None and not location(argument).exists():
            argument = option[1]
            self._most = int(option[2])
        root = location(argument)
        option = re.fullmatch(r"(.*),(\w+=.*)", argument)
        if option is not None and not root.exists() and location(option[1]).exists():
            raise UserError(
                f"data '{spec}': unknown option '{option[2]}'; the only option is bytes=N, an "
                "integer, and the label column must be called label"
            )
        if not argument or not root.exists():
            where = f": {root}" if argument else ""
            raise UserError(f"data '{spec}': no such file or folder{where}; write parquet:PATH")
        self._remedy = f"allow more with parquet:{argument},bytes=N"
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
            column = self._whole(image)
            footers = [pq.read_metadata(file) for file in self._read_from]
        self._take_images(column)
        self._check_not_empty(str(self._read_from[0]))
        if label is not None:
            rest = [file for name in files if name != self.split for file in files[name]]
            own = self._columns(label, self._read_from)
            others = self._columns(label, rest)
            what = f"column '{label}'"
            with reported(f"data '{spec}': cannot read the {what}"):
                self._number_labels(what, own, others, class_names(schema, label))
        size = sum(chunk.nbytes for chunk in self._bytes.chunks)
        groups = [
            [footer.row_group(number) for number in range(footer.num_row_groups)]
            for footer in footers
        ]
        # rows and bytes of each row group
        stamps = [str([(one.num_rows, one.total_byte_size) for one in group]) for group in groups]
        contents = itertools.chain(sample(len(self), self.encoded), [b"\0"])
        self.fingerprint = digest(
            str(len(self)), str(size), *stamps, samples=contents, separator=b""
        )

    def _image_column(self, types: Mapping[str, Any]) -> str:
        """Return the image column: the only struct of bytes, or the first column of structs or bytes with images.

        Raises UserError if no column has images.
        """
        structs = [name for name, kind in types.items() if _holds_files(kind)]
        binaries = [name for name, kind in types.items() if _is_binary(kind)]
        if len(structs) == 1:
            return structs[0]
        of_images = [name for name in (*structs, *binaries) if self._has_images(name)]
        if of_images or structs:
            return (of_images or structs)[0]
        held = some((f"{name} ({kind})" for name, kind in types.items()), most=20)
        raise UserError(
            f"data '{self.name}': no image column (bytes of image files, or structs with a binary field 'bytes', one image per row); its columns: {held}"
        )

    def _has_images(self, column: str) -> bool:
        """True if one of the first values of a column, bytes or a struct with bytes, is an image.

        Raises UserError for a column that is too large.
        """
        path = self._read_from[0]
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            if _claimed(file.metadata.row_group(number), [column]) > self._most:
                raise _too_large(path, self._most, self.name, self._remedy)
        rows = file.iter_batches(1, columns=[column])
        for row in itertools.islice(rows, _LOOKED_AT):
            value = row.column(0)[0].as_py()
            data = value.get("bytes") if isinstance(value, dict) else value
            if data is not None and decoding.kind_of(data) is not None:
                return True
        return False

    def _columns(self, name: str, files: Iterable[Path]) -> Iterator[Any]:
        """Yield the column `name` of each file that has it, in validated parts."""
        for file in files:
            if name in pq.read_schema(file).names:
                for part in unpacked([file], [name], self._most, self.name, self._remedy):
                    part.validate(full=True)
                    yield part.column(name)

    def _whole(self, name: str) -> Any:
        """Return a column of all files of the split. Raises any error of pyarrow for damaged files."""
        parts = unpacked(self._read_from, [name], self._most, self.name, self._remedy)
        # permissive: files may mix 32-bit and 64-bit numbers, or short and long offsets
        table = pa.concat_tables(parts, promote_options="permissive")
        table.validate(full=True)
        return table.column(name)

    def metadata(self, kind: str, name: str) -> list[str | None]:
        if kind != "column":
            return super().metadata(kind, name)
        with reported(f"data '{self.name}': the column '{name}' cannot be read as numbers or text"):
            columns = pq.read_schema(self._read_from[0]).names
            if name not in columns:
                near = nearest(name, columns)
                raise UserError(f"data '{self.name}': has no column '{name}'; {near}")
            values: list[str | None] = self._whole(name).cast(pa.string()).to_pylist()
        return values


def _files(root: Path, spec: str) -> dict[str, list[Path]]:
    """Return {split: files}. Raises UserError if there are no files, or if a split has files of several data sets."""
    files = [root]
    if not root.is_file():
        files = sorted(file for file in root.rglob("*.parquet") if file.is_file())
    if not files:
        raise UserError(
            f"data '{spec}': no .parquet files in {root}; "
            "expected train.parquet, or train-00000-of-00001.parquet and so on"
        )
    splits = files_by_split(files)
    for split, of_split in splits.items():
        # files without a split in their names may be partitions, such as year=2026/part-0.parquet
        named = (file for file in of_split if split_of(file.stem)[0])
        folders = {named_parts(file.parent.parts): file.parent for file in named}
        if len(folders) > 1:
            raise UserError(
                f"data '{spec}': its split {split} has files in {some(folders.values())}; give one "
                "folder, or move the files of one data set into one folder"
            )
    return splits


def _names(chunk: Any) -> list[str | None]:
    """Return the name of each image; None if the row has no name."""
    if not pa.types.is_struct(chunk.type):
        return [None] * len(chunk)
    at = chunk.type.get_field_index("path")
    is_text = at >= 0 and str(chunk.type[at].type) in ("string", "large_string")
    return chunk.field(at).to_pylist() if is_text else [None] * len(chunk)


def unpacked(
    files: list[Path],
    columns: list[str] | None,
    most: int,
    spec: str,
    remedy: str,
) -> Iterator[Any]:
    """Yield columns of the files (default: all columns), a table for each row group, or several for a large row group.

    A file of kilobytes can unpack to gigabytes and claim another size. If the claim is within the limit, rows are therefore
    unpacked and counted in small batches, or one by one if the first row is large. Raises UserError for more than `most`
    bytes. spec: name of the source. remedy: end of the message.
    """
    left = most
    for path in files:
        file = pq.ParquetFile(path)
        empty = file.schema_arrow.empty_table()
        empty = empty if columns is None else empty.select(columns)
        yield empty
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if _claimed(group, columns) > left:
                raise _too_large(path, most, spec, remedy)
            first = next(file.iter_batches(1, row_groups=[number], columns=columns), empty)
            said = group.total_byte_size
            rows = 1 if max(said, _ROWS * first.nbytes) > _LARGE else _ROWS
            batches: list[Any] = []
            unjoined = 0
            for batch in file.iter_batches(rows, row_groups=[number], columns=columns):
                left -= batch.nbytes
                if left < 0:
                    raise _too_large(path, most, spec, remedy)
                if batches and unjoined + batch.nbytes > _JOINED:
                    yield pa.Table.from_batches(batches, empty.schema).combine_chunks()
                    batches = []
                    unjoined = 0
                batches.append(batch)
                unjoined += batch.nbytes
            yield pa.Table.from_batches(batches, empty.schema).combine_chunks()


def _claimed(group: Any, columns: list[str] | None) -> float:
    """Return the least number of bytes to which bytes and texts in a row group unpack if the footer of the file is true.

    columns: names of columns (default: all).
    """
    chunks = [group.column(number) for number in range(group.num_columns)]
    beginnings = tuple(f"{name}." for name in columns or ())
    sizes: list[int] = [
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.physical_type.endswith("BYTE_ARRAY")
        and (columns is None or f"{chunk.path_in_schema}.".startswith(beginnings))
    ]
    return sum(sizes) / _HEADERS


def _too_large(path: Path, most: int, spec: str, remedy: str) -> UserError:
    return UserError(
        f"data '{spec}': {path} unpacks to more than {most:,} bytes, the limit; {remedy}"
    )


def class_names(schema: Any, label: str) -> list[str] | None:
    """Return the class names in the metadata of Hugging Face; None if there are none."""
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


def _is_binary(kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return re.fullmatch(r"(large_|fixed_size_)?binary(_view|\[\d+\])?", str(value)) is not None
