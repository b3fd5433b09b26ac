"""Data sets of the Hugging Face hub, and folders that the `datasets` library reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow.compute as pc
import yaml

from hexa.config import UserError, nearest, some
from hexa.data.sources import decode as decoding, labels
from hexa.data.sources.parquet import half_of_memory, unpacked
from hexa.data.sources.source import Source, by_split, digest, location, reported, sample
from hexa.runtime import parsing
from hexa.runtime.packages import import_extra
from hexa.runtime.paths import Inside

#: Rows read together for names and sizes; `datasets` may copy their images.
_ROWS = 1000
#: Files that `save_to_disk` writes, for several splits and for one.
_SAVED = ("dataset_dict.json", "state.json")
#: What to do about a line of a card that names a file outside the data set.
_REMOVE_IT = (
    "only files inside the folder are read; remove that line, or give the images with folder:PATH"
)


class HuggingFaceSource(Source):
    """A data set NAME of the hub or a folder, optionally followed by :CONFIG, ,image=COLUMN and ,label=COLUMN.

    A folder was written by `save_to_disk`, or has Parquet files or images. The image column is the one of type Image;
    the label column is of type ClassLabel, or has integers or words and is called `label`; if several fit, one has to
    be named. Files are decoded by hexa, not by `datasets`. If there is no split test, or its labels are hidden,
    validation is `test`. Data sets that need to run code are refused, and so are those whose rows, README.md or links
    name a file outside of the folder, or an address.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        name, config, named = _parse(argument, spec)
        path = location(name)
        self.name = spec
        other = "hf:NAME:CONFIG names one of several configs, hf:PATH a folder"
        remedy = "give a folder that `datasets` can read" if path.exists() else other
        with reported(f"data '{spec}': cannot be read", f"; {remedy}"):
            inside = _inside(path, spec)
            self._open(_load(name, config, spec, inside), named, split, inside)

    def _open(
        self,
        tables: Mapping[str, Any],
        named: Mapping[str, str],
        split: str | None,
        inside: Inside,
    ) -> None:
        if not tables:
            raise UserError(f"data '{self.name}': has no splits")
        features = next(iter(tables.values())).features
        image, label, self.unfit_labels = _columns(features, named, self.name)
        table = tables[self._open_split(self.name, split, _splits(tables, label))]
        if not len(table):
            raise UserError(f"data '{self.name}': its split {self.split} has no images")
        # files are memory-mapped and read by lengths that they contain: a damaged one would crash the process
        table.select_columns([c for c in (image, label) if c in table.column_names]).data.validate(
            full=True
        )
        # the image column as two columns, IMAGE.bytes and IMAGE.path
        undecoded = import_extra("datasets", "hf", self.name).Image(decode=False)
        self._images = table.select_columns([image]).cast_column(image, undecoded).flatten()
        names, sizes, single = _names_and_sizes(self._images, image)
        _check_files(inside, single, "a row")
        home = inside.places[0]
        self.paths = [
            _relative(name, home) or f"{self.split}/{number:08d}"
            for number, name in enumerate(names)
        ]
        self._column = image
        if label is not None and label in table.column_names:
            self._read_labels(tables, table, label)
        known = b"" if self.labels is None else self.labels.tobytes()
        self.fingerprint = digest(
            *self.paths, sizes.tobytes(), known, samples=sample(len(self), self.encoded)
        )
        self._read_from = [*(file["filename"] for file in table.cache_files), *single]

    def _read_labels(self, tables: Mapping[str, Any], table: Any, column: str) -> None:
        parts = self._column_of([table], column)
        rest = self._column_of((other for other in tables.values() if other is not table), column)
        names = getattr(table.features[column], "names", None)
        self._number_labels(f"column '{column}'", parts, rest, names)

    def _column_of(self, tables: Iterable[Any], column: str) -> Iterator[Any]:
        for table in tables:
            if column in table.column_names:
                yield table.select_columns([column]).with_format("arrow")[:].column(column)

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
            raise UserError(
                f"data '{spec}': ,{key}= is not a kind of column; {nearest(key, ('image', 'label'))}"
            )
    name, _, config = (place, "", "") if location(place).exists() else place.partition(":")
    if not name:
        raise UserError(
            f"data '{spec}': name a data set of the hub or a folder: hf:NAME, hf:NAME:CONFIG or hf:PATH"
        )
    return name, config or None, named


def _inside(path: Path, spec: str) -> Inside:
    """Where the files of a data set may be: its folder, where `datasets` unpacks archives, and the hub's downloads."""
    datasets = import_extra("datasets", "hf", f"data '{spec}'")
    others = [Path(datasets.config.HF_DATASETS_CACHE, "downloads")]
    if not path.exists():
        others.append(Path(import_extra("huggingface_hub.constants", "hf", spec).HF_HUB_CACHE))
    return Inside(spec, path, *others)


def _check_files(inside: Inside, files: list[str], whose: str) -> None:
    """Raise UserError, naming the file, unless all are inside."""
    for file in files:
        if "://" in file:
            raise UserError(
                f"data '{inside.spec}': {whose} names {file}, an address; only files are read"
            )
    inside.check(files, whose)


def _check_card(path: Path, spec: str) -> None:
    """Raise UserError for an address, or a path that leads out, in what a folder says of its files.

    Before `datasets` looks for them, which fetches from addresses.
    """
    from huggingface_hub import DatasetCard

    cards: dict[str, Any] = {}
    if (path / "README.md").is_file():
        cards["README.md"] = DatasetCard.load(path / "README.md").data.to_dict()
    if (path / ".huggingface.yaml").is_file():
        cards[".huggingface.yaml"] = (
            yaml.safe_load((path / ".huggingface.yaml").read_text(encoding="utf-8")) or {}
        )
    for file, card in cards.items():
        for config in (config for config in card.get("configs") or () if isinstance(config, dict)):
            for named in _texts([config.get("data_files"), config.get("data_dir")]):
                if (
                    urlparse(named).scheme
                    or "::" in named
                    or os.path.isabs(named)
                    or ".." in Path(named).parts
                ):
                    raise UserError(f"data '{spec}': {file} names '{named}'; {_REMOVE_IT}")


def _check_saved(path: Path, inside: Inside) -> None:
    """Raise UserError where the files that `save_to_disk` left name others outside, before any is opened."""
    folders = [path]
    if (path / _SAVED[0]).is_file():
        splits = [
            str(split)
            for split in parsing.from_json((path / _SAVED[0]).read_text(encoding="utf-8"))["splits"]
        ]
        folders = [path / split for split in splits]
        inside.check((f"{folder}/" for folder in folders), "the folder")
    for folder in folders:
        state = parsing.from_json(
            _regular(folder / _SAVED[1], inside.spec).read_text(encoding="utf-8")
        )
        files = [folder / str(file["filename"]) for file in state["_data_files"]]
        inside.check(map(str, files), "the folder")
        for file in files:
            _regular(file, inside.spec)


def _regular(file: Path, spec: str) -> Path:
    """The file; UserError unless it is a regular one: a pipe would be waited for."""
    if not file.is_file():
        raise UserError(f"data '{spec}': {file} is not a regular file; save the data set again")
    return file


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _load(name: str, config: str | None, spec: str, inside: Inside) -> Mapping[str, Any]:
    """{split: table}, with the split names of the data set."""
    datasets = import_extra("datasets", "hf", f"data '{spec}'")
    path = location(name)
    saved = any((path / file).is_file() for file in _SAVED)
    if saved:
        _check_saved(path, inside)
        loaded = datasets.load_from_disk(str(path))
    elif path.exists():
        _check_card(path, spec)
        builder = datasets.load_dataset_builder(str(path), config)
        files = [file for split in (builder.config.data_files or {}).values() for file in split]
        _check_files(inside, files, "the folder")
        if not os.path.exists(builder.cache_dir):  # else unpacked before
            for file in (Path(file) for file in files if file.endswith(".parquet")):
                remedy = "write it as several smaller files"
                for _ in unpacked([file], None, half_of_memory(), f"data '{spec}'", remedy):
                    pass
        builder.download_and_prepare()
        loaded = builder.as_dataset()
    else:
        loaded = datasets.load_dataset(name, config)
    tables = loaded if isinstance(loaded, Mapping) else {str(loaded.split or "train"): loaded}
    if saved:
        for table in tables.values():
            inside.check((file["filename"] for file in table.cache_files), "the folder")
    return tables


def _columns(features: Any, named: Mapping[str, str], spec: str) -> tuple[str, str | None, str]:
    """The image column and the label column: those named by the user, else by their types; then as `labels.column_of`."""
    import datasets

    for column in named.values():
        if column not in features:
            raise UserError(f"data '{spec}': has no column '{column}'; {nearest(column, features)}")
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    classes = [
        column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)
    ]
    types = {field.name: field.type for field in features.arrow_schema}
    found, unfit = (None, "") if classes else labels.column_of(types)
    image = named.get("image")
    label = named.get("label")
    if image is not None and image not in images:
        raise UserError(
            f"data '{spec}': the column '{image}' has no images; columns with images: {some(images)}"
        )
    if label is not None and not labels.are_classes(types[label]):
        raise UserError(
            f"data '{spec}': the column '{label}' has {features[label]}, not one class per image"
        )
    if not images:
        raise UserError(f"data '{spec}': no column of type Image; its columns: {some(features)}")
    for kind, chosen, candidates in (("image", image, images), ("label", label, classes)):
        if chosen is None and len(candidates) > 1:
            example = f"{spec},{kind}={candidates[0]}"
            several = f"each of {some(candidates)} could be the {kind} column"
            raise UserError(f"data '{spec}': {several}; choose one, for example {example}")
    if label is None and not classes:
        return image or images[0], found, unfit
    return image or images[0], label or classes[0], ""


def _splits(tables: Mapping[str, Any], label: str | None) -> dict[str, str]:
    """{split: its name in the data set}. If all labels of test are hidden, validation takes its place."""
    names = by_split(tables)
    if {"test", "val"} <= set(names) and label is not None:
        test = tables[names["test"]]
        if label not in test.column_names or all(
            value in (-1, None) for value in test.unique(label)
        ):
            names["unlabeled"], names["test"] = names["test"], names.pop("val")
    return names


def _names_and_sizes(images: Any, image: str) -> tuple[list[str | None], Any, list[str]]:
    """The name of each image, its size in bytes (0 if it is a file of its own), and the names of those files."""
    names: list[str | None] = []
    sizes = []
    single = []
    for part in images.with_format("arrow").iter(batch_size=_ROWS):
        column = part.column(f"{image}.path")
        names += column.to_pylist()
        single += column.filter(part.column(f"{image}.bytes").is_null()).drop_null().to_pylist()
        sizes.append(pc.binary_length(part.column(f"{image}.bytes")).fill_null(0).to_numpy())
    return names, np.concatenate(sizes).astype(np.int64), single


def _relative(name: str | None, root: Path) -> str | None:
    """The path of a file relative to the data set's folder; other names unchanged."""
    return str(Path(name).relative_to(root)) if name and Path(name).is_relative_to(root) else name
