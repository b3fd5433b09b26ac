"""Reads PASCAL VOC in its published layout: photographs with multi-label classes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hexa.config import UserError, some
from hexa.data.sources.decode import DecodeError, read
from hexa.data.sources.source import Labels, Source
from hexa.runtime.paths import Inside, location

#: Folder of the lists of a year: files CLASS_LIST.txt with image names and 1, 0 or −1.
LISTS = Path("ImageSets", "Main")
_LABELS = (-1, 0, 1)


class VOCSource(Source):
    """The images in the classification lists of one year. The path is `VOCdevkit` (for VOC2007) or a year in it.

    labels: int64 [N, C], 1 for present, −1 for absent, 0 for difficult (only hard-to-see objects of the class). The
    splits train and test are the lists trainval and test or, without a list test, the lists train and val.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        self.root = year_folder(argument, spec)
        self._home = f"{self.root}{os.sep}"
        self.class_names, names, self.labels = _read(
            self.root, self._open_split(spec, split, _lists(self.root)), spec
        )
        self.paths = [f"JPEGImages/{name}.jpg" for name in names]
        inside = Inside(spec, location(argument))
        inside.check((self._home + path for path in self.paths), "a list")
        if missing := [path for path in self.paths if not (self.root / path).is_file()]:
            raise UserError(
                f"data '{spec}': {len(missing)} listed images are not in {self.root}: {some(missing)}"
            )
        self._identify(self.labels.tobytes())


def year_folder(argument: str, spec: str) -> Path:
    """Return the folder of one year. Raises UserError if it is missing."""
    path = location(argument)
    for root in (path, path / "VOC2007", path / "VOCdevkit" / "VOC2007"):
        if argument and (root / LISTS).is_dir():
            return root
    where = f": neither {path} nor its VOC2007 contains {LISTS}" if argument else ""
    raise UserError(f"data '{spec}': no VOC data{where}; write voc:PATH/VOCdevkit")


def _lists(root: Path) -> dict[str, str]:
    """Return {split: name of the list}."""
    names = {path.stem.rpartition("_")[2] for path in (root / LISTS).glob("*_*.txt")}
    published = ("trainval", "test") if {"trainval", "test"} <= names else ("train", "val")
    lists = dict(zip(("train", "test"), published, strict=True)) | {
        "trainval": "trainval",
        "val": "val",
    }
    return {split: name for split, name in lists.items() if name in names}


def _read(root: Path, list_name: str, spec: str) -> tuple[list[str], list[str], Labels]:
    """Return class names in alphabetical order, image names, and labels [N, C]."""
    files = sorted((root / LISTS).glob(f"*_{list_name}.txt"))
    columns: list[list[int]] = []
    names: list[str] = []
    for file in files:
        try:
            rows = [line.split() for line in read(file).decode().splitlines() if line.strip()]
            columns.append([_LABELS[_LABELS.index(int(row[1]))] for row in rows])
        except (IndexError, ValueError, DecodeError):
            raise UserError(
                f"data '{spec}': {file} is not a list of image names, each with 1, 0 or -1"
            ) from None
        listed = [row[0] for row in rows]
        if file != files[0] and listed != names:
            raise UserError(
                f"data '{spec}': {file.name} and {files[0].name} in {file.parent} list different images"
            )
        names = listed
    if not names:
        raise UserError(
            f"data '{spec}': the lists *_{list_name}.txt in {root / LISTS} name no images"
        )
    return (
        [file.stem.rpartition("_")[0] for file in files],
        names,
        np.array(columns, dtype=np.int64).T.copy(),
    )
