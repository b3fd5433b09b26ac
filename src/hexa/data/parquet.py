"""Parquet files in the layout of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hexa.config import UserError, nearest, reason
from hexa.data import decode as decoding
from hexa.data.source import SPLIT_NAMES, Source, by_split, choose_split, digest, location, sample

#: What a label column is called, most wanted first.
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


class ParquetSource(Source):
    """A struct column with the bytes of an image file, and perhaps a label column.

    A folder holds train.parquet and test.parquet, or train-00000-of-00002.parquet …; a file is a split by itself.
    The encoded images are kept in memory.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        root = location(argument)
        if not argument or not root.exists():
            raise UserError(
                f"data '{spec}': no such file or folder{f': {root}' if argument else ''}; write parquet:PATH"
            )
        groups = self._files(root, spec)
        self.name = spec
        self._splits = list(groups)
        self.split = choose_split(spec, split, groups)
        self._read_from = groups[self.split]
        try:
            schema = pq.read_schema(self._read_from[0])
            image, label = self._columns(schema, spec)
            wanted = [image] if label is None else [image, label]
            parts = [pq.read_table(file, columns=wanted, partitioning=None) for file in self._read_from]
            # numbers of 32 and of 64 bits, and bytes with short and with long offsets, go together
            table = pa.concat_tables(parts, promote_options="permissive")
            table.validate(full=True)
            footers = [pq.read_metadata(file) for file in self._read_from]
        except UserError:
            raise
        except Exception as error:  # of many kinds, where bytes are damaged
            some = ", ".join(str(file) for file in self._read_from[:3])
            raise UserError(f"data '{spec}': cannot read {some}: {reason(error) or type(error).__name__}") from None
        if not len(table):
            raise UserError(f"data '{spec}': no images in {self._read_from[0]}")
        self._bytes = [chunk.field("bytes") for chunk in table.column(image).chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in self._bytes])
        names = [name for chunk in table.column(image).chunks for name in self._names(chunk)]
        self.paths = [name or f"{self.split}/{number:08d}" for number, name in enumerate(names)]
        if label is not None:
            self._take_labels(table.column(label).drop_null().to_numpy(), class_names(schema, label))
        sizes = [chunk.nbytes for chunk in self._bytes]
        stamps = [str(self._stamp(footer)) for footer in footers]
        contents = b"".join(sample(len(self), self.encoded))
        self.fingerprint = digest(str(len(table)), str(sum(sizes)), *stamps, contents)

    @staticmethod
    def _files(root: Path, spec: str) -> dict[str, list[Path]]:
        files = [root] if root.is_file() else sorted(file for file in root.rglob("*.parquet") if file.is_file())
        if not files:
            expected = "train.parquet, or train-00000-of-00001.parquet and so on"
            raise UserError(f"data '{spec}': no .parquet files in {root}; expected {expected}")
        named: dict[str, list[Path]] = {}
        for file in files:
            named.setdefault(file.name.split(".")[0].split("-")[0], []).append(file)
        if root.is_file() and not set(named) & set(SPLIT_NAMES):
            return {"train": files}  # a file of any name
        return {split: named[name] for split, name in by_split(named).items()}

    @staticmethod
    def _columns(schema: Any, spec: str) -> tuple[str, str | None]:
        import pyarrow as pa

        images = [
            field.name
            for field in schema
            if pa.types.is_struct(field.type)
            and field.type.get_field_index("bytes") >= 0
            and _is_binary(field.type.field("bytes").type)
        ]
        if not images:
            there = ", ".join(schema.names) or "none"
            raise UserError(f"data '{spec}': no image column, a struct with a binary field 'bytes'; there are: {there}")
        integers = [field.name for field in schema if pa.types.is_integer(field.type)]
        labels = [name for name in LABEL_COLUMNS if name in integers]
        return images[0], labels[0] if labels else None

    @staticmethod
    def _names(chunk: Any) -> list[str | None]:
        import pyarrow as pa

        at = chunk.type.get_field_index("path")
        is_text = at >= 0 and (pa.types.is_string(chunk.type[at].type) or pa.types.is_large_string(chunk.type[at].type))
        return chunk.field(at).to_pylist() if is_text else [None] * len(chunk)

    @staticmethod
    def _stamp(footer: Any) -> list[tuple[int, int]]:
        groups = (footer.row_group(number) for number in range(footer.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def splits(self) -> list[str]:
        return self._splits

    def files(self) -> list[Path]:
        return self._read_from

    def metadata(self, kind: str, name: str) -> list[str | None]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if kind != "column":
            return super().metadata(kind, name)
        try:
            there = pq.read_schema(self._read_from[0]).names
            if name not in there:
                raise UserError(f"data '{self.name}': has no column '{name}'; {nearest(name, there)}")
            parts = [pq.read_table(file, columns=[name], partitioning=None) for file in self._read_from]
            table = pa.concat_tables(parts, promote_options="permissive")
            table.validate(full=True)
            found: list[str | None] = table.column(name).cast(pa.string()).to_pylist()
        except UserError:
            raise
        except Exception as error:  # of many kinds, as above
            said = reason(error) or type(error).__name__
            raise UserError(f"data '{self.name}': the column '{name}' is not read as numbers or text: {said}") from None
        return found

    def encoded(self, index: int) -> bytes:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        data = self._bytes[chunk][index - int(self._starts[chunk])].as_py()
        if data is None:
            raise decoding.DecodeError("no bytes in this row")
        return bytes(data)


def class_names(schema: Any, label: str) -> list[str] | None:
    """What the metadata of Hugging Face call the classes, if they do."""
    try:
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
        if isinstance(names, dict):  # some writers number them
            names = [names[key] for key in sorted(names, key=int)]
    except (ValueError, TypeError, KeyError, RecursionError):  # whatever anybody may have written there
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(check(value) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))
