"""Data sets of the Hugging Face hub, and folders that the `datasets` library reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hexa.config import UserError, nearest, some
from hexa.data import decode as decoding
from hexa.data.parquet import LABEL_COLUMNS
from hexa.data.source import Source, by_split, choose_split, digest, location, reported, sample
from hexa.runtime.packages import import_extra

#: Rows read together for names and sizes; `datasets` may copy their images.
_ROWS = 1000
#: Files that `save_to_disk` writes, for several splits and for one.
_SAVED = ("dataset_dict.json", "state.json")


class HuggingFaceSource(Source):
    """A data set NAME of the hub or a folder, optionally followed by :CONFIG, ,image=COLUMN and ,label=COLUMN.

    A folder was written by `save_to_disk`, or has Parquet files or images. The image column is the one of type Image;
    the label column is of type ClassLabel, or has integers or words and is called `label`; if several fit, one has to
    be named. Files are decoded by hexa, not by `datasets`. If there is no split test, or its labels are hidden,
    validation is `test`. Data sets that need to run code are refused.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        name, config, named = _parse(argument, spec)
        path = location(name)
        self.name = spec
        other = "hf:NAME:CONFIG names one of several configs, hf:PATH a folder"
        remedy = "give a folder that `datasets` can read" if path.exists() else other
        with reported(f"data '{spec}': cannot be read", f"; {remedy}"):
            self._open(_load(name, config, spec), named, split, path.resolve())

    def _open(self, tables: Mapping[str, Any], named: Mapping[str, str], split: str | None, root: Path) -> None:
        if not tables:
            raise UserError(f"data '{self.name}': has no splits")
        image, label = _columns(next(iter(tables.values())).features, named, self.name)
        groups = _splits(tables, label)
        self._splits = list(groups)
        self.split = choose_split(self.name, split, groups)
        table = tables[groups[self.split]]
        if not len(table):
            raise UserError(f"data '{self.name}': its split {self.split} has no images")
        # files are memory-mapped and read by lengths that they contain: a damaged one would crash the process
        table.select_columns([c for c in (image, label) if c in table.column_names]).data.validate(full=True)
        self._images = _undecoded(table, image)
        names, sizes = _names_and_sizes(self._images, image)
        self.paths = [_relative(name, root) or f"{self.split}/{number:08d}" for number, name in enumerate(names)]
        self._column = image
        if label is not None and label in table.column_names:
            self._read_labels(tables, table, label)
        known = b"" if self.labels is None else self.labels.tobytes()
        self.fingerprint = digest(*self.paths, sizes.tobytes(), known, *sample(len(self), self.encoded))
        single = [name for name, size in zip(names, sizes, strict=True) if name is not None and size == 0]
        self._read_from = [*(file["filename"] for file in table.cache_files), *single]

    def _read_labels(self, tables: Mapping[str, Any], table: Any, column: str) -> None:
        feature = table.features[column]
        names = getattr(feature, "names", None)
        values = table.select_columns([column]).with_format("arrow")[:].column(column)
        if _is_text(feature):  # numbered alike in all splits
            lists = [other.unique(column) for other in tables.values() if column in other.column_names]
            names = sorted({word for words in lists for word in words if word is not None})
            values = pc.index_in(values, pa.array(names, values.type))
        self._take_labels(values.drop_null().to_numpy(), names)

    def files(self) -> list[str]:
        return self._read_from

    def encoded(self, index: int) -> bytes:
        row = self._images[index]
        if row[f"{self._column}.bytes"] is not None:
            return bytes(row[f"{self._column}.bytes"])
        if row[f"{self._column}.path"] is None:
            raise decoding.DecodeError("no bytes in this row")
        return decoding.read(Path(row[f"{self._column}.path"]))


def _parse(argument: str, spec: str) -> tuple[str, str | None, dict[str, str]]:
    """NAME, CONFIG and {"image" or "label": column}."""
    place, *choices = re.split(r",(\w+)=", argument)  # ? and & mean something to the shell
    named = dict(zip(choices[::2], choices[1::2], strict=True))
    for key in named:
        if key not in ("image", "label"):
            raise UserError(f"data '{spec}': ,{key}= is not a kind of column; {nearest(key, ('image', 'label'))}")
    name, _, config = (place, "", "") if location(place).exists() else place.partition(":")
    if not name:
        raise UserError(f"data '{spec}': name a data set of the hub or a folder: hf:NAME, hf:NAME:CONFIG or hf:PATH")
    return name, config or None, named


def _load(name: str, config: str | None, spec: str) -> Mapping[str, Any]:
    """{split: table}, with the split names of the data set."""
    datasets = import_extra("datasets", "hf", f"data '{spec}'")
    path = location(name)
    if any((path / file).is_file() for file in _SAVED):
        loaded = datasets.load_from_disk(str(path))
    else:
        loaded = datasets.load_dataset(str(path) if path.exists() else name, config)
    if isinstance(loaded, Mapping):
        return loaded
    return {str(loaded.split or "train"): loaded}


def _columns(features: Mapping[str, Any], named: Mapping[str, str], spec: str) -> tuple[str, str | None]:
    """The image column and the label column: those named by the user, else by their types."""
    import datasets

    for column in named.values():
        if column not in features:
            raise UserError(f"data '{spec}': has no column '{column}'; {nearest(column, features)}")
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not labels:
        labels = [c for c in LABEL_COLUMNS if c in features and _can_label(features[c])][:1]
    image, label = named.get("image"), named.get("label")
    if image is not None and image not in images:
        raise UserError(f"data '{spec}': the column '{image}' has no images; columns with images: {some(images)}")
    if label is not None and not _can_label(features[label]):
        raise UserError(f"data '{spec}': the column '{label}' has {features[label]}, not one class per image")
    if not images:
        raise UserError(f"data '{spec}': no column of type Image; its columns: {some(features)}")
    for kind, chosen, candidates in (("image", image, images), ("label", label, labels)):
        if chosen is None and len(candidates) > 1:
            example = f"{spec},{kind}={candidates[0]}"
            several = f"each of {some(candidates)} could be the {kind} column"
            raise UserError(f"data '{spec}': {several}; choose one, for example {example}")
    return image or images[0], label or (labels[0] if labels else None)


def _can_label(feature: Any) -> bool:
    return _is_text(feature) or str(getattr(feature, "dtype", "")).startswith(("int", "uint"))


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _splits(tables: Mapping[str, Any], label: str | None) -> dict[str, str]:
    """{split: its name in the data set}. If all labels of test are hidden, validation takes its place."""
    names = by_split(tables)
    if {"test", "val"} <= set(names) and label is not None:
        test = tables[names["test"]]
        hidden = label not in test.column_names or all(value in (-1, None) for value in test.unique(label))
        if hidden:
            names["unlabeled"], names["test"] = names["test"], names.pop("val")
    return names


def _undecoded(table: Any, image: str) -> Any:
    """The image column as two columns, IMAGE.bytes and IMAGE.path."""
    import datasets

    return table.select_columns([image]).cast_column(image, datasets.Image(decode=False)).flatten()


def _names_and_sizes(images: Any, image: str) -> tuple[list[str | None], Any]:
    """The name of each image, and its size in bytes (0 if it is a file of its own)."""
    names: list[str | None] = []
    sizes = []
    for part in images.with_format("arrow").iter(batch_size=_ROWS):
        names += part.column(f"{image}.path").to_pylist()
        sizes.append(pc.binary_length(part.column(f"{image}.bytes")).fill_null(0).to_numpy())
    return names, np.concatenate(sizes).astype(np.int64)


def _relative(name: str | None, root: Path) -> str | None:
    """The path of a file relative to the data set's folder; other names unchanged."""
    return str(Path(name).relative_to(root)) if name and Path(name).is_relative_to(root) else name
