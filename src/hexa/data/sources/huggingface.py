"""Reads data sets of the Hugging Face hub, and folders in formats of the `datasets` library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow.compute as pc

from hexa.config import UserError, nearest, some
from hexa.data.sources import labels
from hexa.data.sources.decode import EXTENSIONS, read
from hexa.data.sources.parquet import ArrowSource, unpacked
from hexa.data.sources.source import digest, reported, sample
from hexa.data.sources.splits import by_split
from hexa.runtime import parsing
from hexa.runtime.packages import import_extra
from hexa.runtime.paths import Inside, location
from hexa.runtime.resources import usable_memory

#: Files of `save_to_disk`: the list of splits, and the state of one split.
_SPLITS = "dataset_dict.json"
_STATE = "state.json"
#: Files in which a folder may list its data files.
_CARDS = ("README.md", ".huggingface.yaml")
#: Largest card in bytes; ten thousand names of classes take a quarter of that.
_MOST_CARD = 1 << 20
#: Suffixes of packed files, and first bytes of their contents. `datasets` unpacks them to the disk, without a limit.
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".rar")
_PACKED_BEGINNINGS = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x07\x08",
    b"7z\xbc\xaf",
    b"Rar!",
)
#: Number of bytes at the beginning of a file that tell whether it is packed.
_BEGINNING = 8
#: Remedy for a card that names a file outside of the data set.
_REMOVE_IT = (
    "only files inside the folder are read; remove this line, or give the images as folder:PATH"
)


class HuggingFaceSource(ArrowSource):
    """A data set NAME of the hub or a folder, optionally followed by :CONFIG, ,image=COLUMN and ,label=COLUMN.

    A folder was written by `save_to_disk`, or has Parquet files or images. The image column has the type Image. The
    label column has the type ClassLabel, or the name `label` and integers or text. If several columns fit, the user must
    name one. hexa decodes the files, not `datasets`. If the labels of the test split are hidden, it is `unlabeled`. A data
    set is refused if it needs to run code, or if its rows, README.md or links name a file outside of the folder or an
    address.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        name, config, named = _parse(argument, spec)
        path = location(name)
        self.name = spec
        if path.is_file():
            raise UserError(f"data '{spec}': {path} is a file; give its folder, or parquet:{path}")
        remedy = "give hf:NAME:CONFIG for one of several configs, or hf:PATH for a folder"
        with reported(f"data '{spec}': cannot be read", f"; {remedy}"):
            inside = _inside(path, spec)
            self._open(_load(name, config, inside), named, split, inside)

    def _open(
        self,
        tables: Mapping[str, Any],
        named: Mapping[str, str],
        split: str | None,
        inside: Inside,
    ) -> None:
        features = next(iter(tables.values())).features if tables else {}
        image, label, self.unfit_labels = _columns(features, named, self.name)
        table = tables[self._open_split(self.name, split, _splits(tables, label))]
        if not len(table):
            raise UserError(f"data '{self.name}': the split {self.split} has no images")
            # files are memory-mapped and contain lengths, so that a damaged file would crash the process
        used = [column for column in (image, label) if column in table.column_names]
        table.select_columns(used).data.validate(full=True)
        names = self._take_images(table.data.column(image))
        empty = self._bytes.is_null().to_pylist()
        self._single = {row: name for row, name in enumerate(names) if name and empty[row]}
        single = list(self._single.values())
        _check_files(inside, single, "a row")
        root = inside.places[0]
        self.paths = [
            str(Path(one).relative_to(root)) if Path(one).is_relative_to(root) else one
            for one in self.paths
        ]
        if label is not None and label in used:
            rest = [other for other in tables.values() if other is not table]
            others = [other.data.column(label) for other in rest if label in other.column_names]
            class_names = getattr(table.features[label], "names", None)
            own = [table.data.column(label)]
            self._number_labels(f"column '{label}'", own, others, class_names)
        known = b"" if self.labels is None else self.labels.tobytes()
        sizes = pc.binary_length(self._bytes).fill_null(0).to_numpy().astype(np.int64)
        contents = sample(len(self), self.encoded)
        self.fingerprint = digest(*self.paths, sizes.tobytes(), known, samples=contents)
        self._read_from = [*(file["filename"] for file in table.cache_files), *single]

    def encoded(self, index: int) -> bytes:
        file = self._single.get(index)
        return super().encoded(index) if file is None else read(file)


def _parse(argument: str, spec: str) -> tuple[str, str | None, dict[str, str]]:
    """Return name, config and {"image" or "label": column} of an argument."""
    place, *choices = re.split(r",(\w+)=", argument)  # ? and & have a meaning in the shell
    named = dict(zip(choices[::2], choices[1::2], strict=True))
    for key in named.keys() - {"image", "label"}:
        near = nearest(key, ("image", "label"))
        raise UserError(f"data '{spec}': ,{key}= is not a kind of column; {near}")
    name, _, config = (place, "", "") if location(place).exists() else place.partition(":")
    if not name:
        raise UserError(
            f"data '{spec}': name a data set of the hub or a folder: hf:NAME, hf:NAME:CONFIG or "
            "hf:PATH"
        )
    return name, config or None, named


def _inside(path: Path, spec: str) -> Inside:
    """Return the folders that may hold files of the data set: its own, the archives of `datasets`, downloads of the hub."""
    datasets = import_extra("datasets", "hf", f"data '{spec}'")
    others = [Path(datasets.config.HF_DATASETS_CACHE, "downloads")]
    if not path.exists():
        others.append(Path(import_extra("huggingface_hub.constants", "hf", spec).HF_HUB_CACHE))
    return Inside(spec, path, *others)


def _check_files(inside: Inside, files: list[str], whose: str) -> None:
    """Raise UserError for a file that is outside of the allowed folders."""
    for file in files:
        if "://" in file:
            raise UserError(
                f"data '{inside.spec}': {whose} names {file}, an address; only files are read"
            )
    inside.check(files, whose)


def _check_card(path: Path, spec: str) -> None:
    """Raise UserError if the card of a folder has YAML aliases, or names an address or a path outside of the folder.

    This check precedes `datasets`, which downloads from addresses, and which aliases of a kilobyte keep busy forever.
    """
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    for name in _CARDS:
        file = path / name
        if not file.is_file():
            continue
        try:
            text = parsing.read_text(file, _MOST_CARD)
            if file.suffix == ".md":
                block = REGEX_YAML_BLOCK.search(text)
                text = "" if block is None else block[2]
            card = parsing.from_yaml(text, parsing.PlainLoader) or {}
        except UserError as error:
            problem = str(error).removeprefix(f"{file}: ")
            remedy = f"correct it, or use folder:{path}"
            raise UserError(f"data '{spec}': {file}: {problem}; {remedy}") from None
        configs = [config for config in card.get("configs") or () if isinstance(config, dict)]
        for named in _texts([[one.get("data_files"), one.get("data_dir")] for one in configs]):
            is_address = urlparse(named).scheme or "::" in named
            if is_address or os.path.isabs(named) or ".." in Path(named).parts:
                raise UserError(f"data '{spec}': {name} names '{named}'; {_REMOVE_IT}")


def _check_saved(path: Path, inside: Inside) -> None:
    """Raise UserError if files of `save_to_disk` name a file outside of the folder; no such file is opened."""
    folders = [path]
    if (path / _SPLITS).is_file():
        splits = parsing.read_json(path / _SPLITS, "save the data set again")["splits"]
        folders = [path / str(split) for split in splits]
        inside.check((f"{folder}/" for folder in folders), "the folder")
    for folder in folders:
        state = parsing.read_json(folder / _STATE, "save the data set again")
        files = [folder / str(file["filename"]) for file in state["_data_files"]]
        inside.check(map(str, files), "the folder")
        for file in files:
            if not file.is_file():  # reading a pipe may never end
                raise UserError(
                    f"data '{inside.spec}': {file} is not a regular file; save the data set again"
                )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _load(name: str, config: str | None, inside: Inside) -> Mapping[str, Any]:
    """Load {split: table}, with the split names of the data set."""
    import datasets

    path = location(name)
    if any((path / file).is_file() for file in (_SPLITS, _STATE)):
        _check_saved(path, inside)
        loaded = datasets.load_from_disk(str(path))
    elif path.exists():
        loaded = _built(path, config, inside)
    else:
        loaded = datasets.load_dataset(name, config)
    return loaded if isinstance(loaded, Mapping) else {str(loaded.split or "train"): loaded}


def _built(path: Path, config: str | None, inside: Inside) -> Any:
    """Read a folder of Parquet files or images with `datasets`, after a check of the unpacked size."""
    import datasets

    _check_card(path, inside.spec)
    builder = datasets.load_dataset_builder(str(path), config)
    files = [file for split in (builder.config.data_files or {}).values() for file in split]
    _check_files(inside, files, "the folder")
    for file in files:
        if _is_packed(file):
            raise UserError(f"data '{inside.spec}': {file} is a packed file; unpack it first")
    if not os.path.exists(builder.cache_dir):  # otherwise, the files have been unpacked before
        remedy = "write it as several smaller files"
        for table in (Path(file) for file in files if file.endswith(".parquet")):
            for _ in unpacked([table], None, usable_memory() // 2, inside.spec, remedy):
                pass
    builder.download_and_prepare()
    return builder.as_dataset()


def _is_packed(file: str) -> bool:
    """True for an archive or a compressed file, by its suffix or by its content, except for an image."""
    suffix = os.path.splitext(file)[1].lower()
    if suffix in EXTENSIONS:  # opening a million images takes minutes
        return False
    return suffix in _PACKED or read(file, _BEGINNING).startswith(_PACKED_BEGINNINGS)


def _columns(features: Any, named: Mapping[str, str], spec: str) -> tuple[str, str | None, str]:
    """Return image column, label column and a reason for unusable labels; the user's choice precedes column types."""
    import datasets

    for column in named.values():
        if column not in features:
            raise UserError(f"data '{spec}': has no column '{column}'; {nearest(column, features)}")
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    chosen = [named["image"]] if "image" in named else images
    if not chosen or not {*chosen} <= {*images}:
        kinds = {
            name: getattr(kind, "dtype", type(kind).__name__) for name, kind in features.items()
        }
        held = some((f"{name} ({kind})" for name, kind in kinds.items()), most=20)
        found = f"{some(chosen)} is not a column" if chosen else "no column is"
        raise UserError(
            f"data '{spec}': {found} of type Image; its columns: {held}; for "
            "plain bytes in Parquet files, write parquet:PATH"
        )
    image = _only("image", chosen, spec)
    types = {field.name: field.type for field in features.arrow_schema}
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    label = named.get("label")
    if label is not None and not labels.are_classes(types[label]):
        raise UserError(
            f"data '{spec}': the column '{label}' has {features[label]}, not one class per image"
        )
    if label is None and not classes:
        return image, *labels.column_of(types)
    return image, label or _only("label", classes, spec), ""


def _only(kind: str, candidates: list[str], spec: str) -> str:
    """Return the only candidate. Raises UserError for several candidates."""
    if len(candidates) > 1:
        raise UserError(
            f"data '{spec}': each of {some(candidates)} could be the {kind} column; choose one, "
            f"for example {spec},{kind}={candidates[0]}"
        )
    return candidates[0]


def _splits(tables: Mapping[str, Any], label: str | None) -> dict[str, str]:
    """Return {split: name in the data set}. If all test labels are hidden, the test split is `unlabeled`."""
    names = by_split(tables)
    if {"test", "val"} <= set(names) and label is not None:
        test = tables[names["test"]]
        if label not in test.column_names or set(test.unique(label)) <= {-1, None}:
            names["unlabeled"] = names.pop("test")
    return names
