"""Parquet files in the layout of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hexa.config import UserError
from hexa.data import decode as decoding
from hexa.data.source import SPLIT_NAMES, Source, by_split, choose_split, digest

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

        root = Path(argument).expanduser()
        if not argument or not root.exists():
            raise UserError(
                f"data '{spec}': no such file or folder{f': {root}' if argument else ''}; write parquet:PATH"
            )
        groups = self._files(root, spec)
        self.name = spec
        self._splits = list(groups)
        self.split = choose_split(spec, split, groups)
        try:
            schema = pq.read_schema(groups[self.split][0])
            image, label = self._columns(schema, spec)
            wanted = [image] if label is None else [image, label]
            table = pa.concat_tables([pq.read_table(file, columns=wanted) for file in groups[self.split]])
            footers = [pq.ParquetFile(file).metadata for file in groups[self.split]]
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"data '{spec}': cannot read {groups[self.split][0]}: {' '.join(str(error).split())}"
            ) from None
        if not len(table):
            raise UserError(f"data '{spec}': no images in {groups[self.split][0]}")
        self._bytes = [chunk.field("bytes") for chunk in table.column(image).chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in self._bytes])
        names = [name for chunk in table.column(image).chunks for name in self._names(chunk)]
        self.paths = [name or f"{self.split}/{number:08d}" for number, name in enumerate(names)]
        if label is not None:
            labels = table.column(label).fill_null(-1).to_numpy().astype(np.int64)
            self.labels = labels if labels.min() >= 0 else None  # the hidden labels of a test split are −1
            self.class_names = self._class_names(schema, label)
        sizes = [chunk.nbytes for chunk in self._bytes]
        stamps = [str(self._stamp(footer)) for footer in footers]
        self.fingerprint = digest(str(len(table)), str(sum(sizes)), *stamps, self._sample())

    @staticmethod
    def _files(root: Path, spec: str) -> dict[str, list[Path]]:
        files = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
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
            if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        ]
        if not images:
            raise UserError(
                f"data '{spec}': no image column, a struct with a field 'bytes'; there are: {', '.join(schema.names)}"
            )
        integers = [field.name for field in schema if pa.types.is_integer(field.type)]
        labels = [name for name in LABEL_COLUMNS if name in integers]
        return images[0], labels[0] if labels else None

    @staticmethod
    def _names(chunk: Any) -> list[str | None]:
        at = chunk.type.get_field_index("path")
        return chunk.field(at).to_pylist() if at >= 0 else [None] * len(chunk)

    @staticmethod
    def _class_names(schema: Any, label: str) -> list[str] | None:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = metadata.get("info", {}).get("features", {}).get(label, {})
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, dict):  # some writers number them
            names = [names[key] for key in sorted(names, key=int)]
        return [str(name) for name in names] if names else None

    @staticmethod
    def _stamp(footer: Any) -> list[tuple[int, int]]:
        groups = (footer.row_group(number) for number in range(footer.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def _sample(self) -> bytes:
        """About a hundred images spread over the split, so that the fingerprint sees contents and not sizes alone."""
        return b"".join(self.encoded(index) for index in range(0, len(self), max(1, len(self) // 100)))

    def splits(self) -> list[str]:
        return self._splits

    def encoded(self, index: int) -> bytes:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        data = self._bytes[chunk][index - int(self._starts[chunk])].as_py()
        if data is None:
            raise decoding.DecodeError("no bytes in this row")
        return bytes(data)

    def decode(self, index: int) -> Tensor:
        return decoding.decode(self.encoded(index))
