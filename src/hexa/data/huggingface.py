"""Data sets of the Hugging Face hub, and folders that its `datasets` library reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hexa.config import UserError, nearest, reason
from hexa.data import decode as decoding
from hexa.data.parquet import LABEL_COLUMNS
from hexa.data.source import Source, by_split, choose_split, digest, location, sample
from hexa.runtime.packages import import_extra

#: Rows looked at together when names, sizes and labels are read; where rows were picked, their images are copied.
_ROWS = 1000
#: Files that `save_to_disk` leaves: of several splits, and of one.
_SAVED = ("dataset_dict.json", "state.json")


class HuggingFaceSource(Source):
    """NAME of the hub or a folder, perhaps :CONFIG and ,image=COLUMN and ,label=COLUMN behind it.

    A folder is one that `save_to_disk` wrote, or one of Parquet files or images. The image column is the one of type
    Image, the label column that of type ClassLabel, or integers or words that are called `label`; of several, one has
    to be named. Files are decoded by us, not by `datasets`. Where a split test is absent, or its labels are hidden,
    validation is `test`. Data sets that would run code of their own are refused.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        name, config, asked = _parse(argument, spec)
        self.name = spec
        with _reading(spec, location(name)):
            tables = _load(name, config, spec)
            self._open(tables, asked, split, location(name).resolve())

    def _open(self, tables: Mapping[str, Any], asked: Mapping[str, str], split: str | None, root: Path) -> None:
        if not tables:
            raise UserError(f"data '{self.name}': has no splits")
        image, label = _columns(next(iter(tables.values())).features, asked, self.name)
        groups = _splits(tables, label)
        self._splits = list(groups)
        self.split = choose_split(self.name, split, groups)
        table = tables[groups[self.split]]
        if not len(table):
            raise UserError(f"data '{self.name}': its split {self.split} holds no images")
        # a file is read from where it lies, by lengths that it tells itself: a damaged one would end the process
        table.select_columns([c for c in (image, label) if c in table.column_names]).data.validate(full=True)
        self._images = _undecoded(table, image)
        names, sizes = _names_and_sizes(self._images, image)
        self.paths = [_short(given, root) or f"{self.split}/{number:08d}" for number, given in enumerate(names)]
        self._column = image
        if label is not None and label in table.column_names:
            self._read_labels(tables, table, label)
        known = b"" if self.labels is None else self.labels.tobytes()
        self.fingerprint = digest(*self.paths, sizes.tobytes(), known, *sample(len(self), self.encoded))
        apart = [name for name, size in zip(names, sizes, strict=True) if name is not None and size == 0]
        self._read_from = [*(file["filename"] for file in table.cache_files), *apart]

    def _read_labels(self, tables: Mapping[str, Any], table: Any, column: str) -> None:
        feature = table.features[column]
        names = getattr(feature, "names", None)
        found = table.select_columns([column]).with_format("arrow")[:].column(column)
        if _is_text(feature):  # numbered alike over all splits
            lists = [one.unique(column) for one in tables.values() if column in one.column_names]
            names = sorted({word for words in lists for word in words if word is not None})
            found = pc.index_in(found, pa.array(names, found.type))
        self._take_labels(found.drop_null().to_numpy(), names)

    def splits(self) -> list[str]:
        return self._splits

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
    place, *choices = re.split(r",(\w+)=", argument)  # the shell means something by ? and &
    asked = dict(zip(choices[::2], choices[1::2], strict=True))
    for key in asked:
        if key not in ("image", "label"):
            raise UserError(f"data '{spec}': ,{key}= is not a kind of column; {nearest(key, ('image', 'label'))}")
    name, _, config = (place, "", "") if location(place).exists() else place.partition(":")
    if not name:
        raise UserError(f"data '{spec}': name a data set of the hub or a folder, hf:NAME, hf:NAME:CONFIG or hf:PATH")
    return name, config or None, asked


@contextmanager
def _reading(spec: str, path: Path) -> Iterator[None]:
    """Whatever `datasets` and pyarrow say of data that they cannot read is a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of many kinds, from the network's to the file formats'
        other = "hf:NAME:CONFIG names one of several configs, hf:PATH a folder"
        remedy = "give a folder that `datasets` reads" if path.exists() else other
        said = reason(error, 300) or type(error).__name__
        raise UserError(f"data '{spec}': cannot be read: {said}; {remedy}") from None


def _load(name: str, config: str | None, spec: str) -> Mapping[str, Any]:
    """The tables of all splits, as `datasets` calls them."""
    datasets = import_extra("datasets", "hf", f"data '{spec}'")
    path = location(name)
    if any((path / file).is_file() for file in _SAVED):
        found = datasets.load_from_disk(str(path))
    else:
        found = datasets.load_dataset(str(path) if path.exists() else name, config)
    if isinstance(found, Mapping):
        return found
    return {str(found.split or "train"): found}


def _columns(features: Mapping[str, Any], asked: Mapping[str, str], spec: str) -> tuple[str, str | None]:
    """The image column and the label column, by their types unless they were asked for."""
    import datasets

    for column in asked.values():
        if column not in features:
            raise UserError(f"data '{spec}': has no column '{column}'; {nearest(column, features)}")
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not labels:
        labels = [c for c in LABEL_COLUMNS if c in features and _can_label(features[c])][:1]
    image, label = asked.get("image"), asked.get("label")
    if image is not None and image not in images:
        raise UserError(f"data '{spec}': the column '{image}' holds no images; those that do: {_listed(images)}")
    if label is not None and not _can_label(features[label]):
        raise UserError(f"data '{spec}': the column '{label}' holds no class for each image but {features[label]}")
    if not images:
        raise UserError(f"data '{spec}': no column of type Image; there are: {_listed(features)}")
    for kind, chosen, found in (("image", image, images), ("label", label, labels)):
        if chosen is None and len(found) > 1:
            example = f"{spec},{kind}={found[0]}"
            raise UserError(f"data '{spec}': {_listed(found)} could each be the {kind} column; choose one: {example}")
    return image or images[0], label or (labels[0] if labels else None)


def _can_label(feature: Any) -> bool:
    return _is_text(feature) or str(getattr(feature, "dtype", "")).startswith(("int", "uint"))


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(columns) or "none"


def _splits(tables: Mapping[str, Any], label: str | None) -> dict[str, str]:
    """{split: its name in the data set}. A test split whose labels are all hidden makes room for validation."""
    found = by_split(tables)
    if {"test", "val"} <= set(found) and label is not None:
        test = tables[found["test"]]
        hidden = label not in test.column_names or all(value in (-1, None) for value in test.unique(label))
        if hidden:
            found["unlabeled"], found["test"] = found["test"], found.pop("val")
    return found


def _undecoded(table: Any, image: str) -> Any:
    """The image column alone, as columns of bytes and of paths."""
    import datasets

    return table.select_columns([image]).cast_column(image, datasets.Image(decode=False)).flatten()


def _names_and_sizes(images: Any, image: str) -> tuple[list[str | None], Any]:
    """What each image is called, and how many bytes it has (0 where it lies in a file of its own)."""
    names: list[str | None] = []
    sizes = []
    for part in images.with_format("arrow").iter(batch_size=_ROWS):
        names += part.column(f"{image}.path").to_pylist()
        sizes.append(pc.binary_length(part.column(f"{image}.bytes")).fill_null(0).to_numpy())
    return names, np.concatenate(sizes).astype(np.int64)


def _short(name: str | None, root: Path) -> str | None:
    """The path of a file without the folder that was given, other names as they are."""
    return str(Path(name).relative_to(root)) if name and Path(name).is_relative_to(root) else name
