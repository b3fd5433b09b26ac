"""Image files below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import Tensor

from hexa.config import UserError
from hexa.data import decode as decoding
from hexa.data.source import SPLIT_NAMES, Source, by_split, choose_split, digest


class FolderSource(Source):
    """Image files below a folder: its sub-folders are the classes, if every image lies in one of at least two.

    If all sub-folders are called train, test, val … they are splits, each with classes of its own kind, numbered alike
    over all splits. Without them everything is the split `train`.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        root = Path(argument).expanduser()
        if not argument or not root.is_dir():
            what = "is a file, not a folder" if root.is_file() else "no such folder"
            raise UserError(f"data '{spec}': {what}{f': {root}' if argument else ''}; write folder:PATH")
        inside = _folders(root)
        are_splits = bool(inside) and all(name.lower() in SPLIT_NAMES for name in inside)
        folders = {key: root / name for key, name in by_split(inside).items()} if are_splits else {"train": root}
        self.name = spec
        self._splits = list(folders)
        self.split = choose_split(spec, split, folders)
        self.root = folders[self.split]
        self.paths = sorted(_image_files(self.root))
        if not self.paths:
            known = ", ".join(sorted(decoding.EXTENSIONS))
            raise UserError(f"data '{spec}': no images below {self.root}; known are {known}")
        looked_at = self.paths[:: max(1, len(self.paths) // 10_000)]
        self.fingerprint = digest(*self.paths, *(str((self.root / path).stat().st_size) for path in looked_at))
        tops = [path.split("/", 1)[0] if "/" in path else None for path in self.paths]
        classes = {top for top in tops if top is not None}
        if None not in tops and len(classes) > 1:
            if are_splits:
                classes.update(name for folder in folders.values() for name in _folders(folder))
            self.class_names = sorted(classes)
            number = {name: label for label, name in enumerate(self.class_names)}
            self.labels = np.array([number[top] for top in tops if top is not None], dtype=np.int64)

    def splits(self) -> list[str]:
        return self._splits

    def encoded(self, index: int) -> bytes:
        return decoding.read(self.root / self.paths[index])

    def decode(self, index: int) -> Tensor:
        return decoding.decode(self.encoded(index))


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _image_files(root: Path) -> Iterable[str]:
    """The paths below `root` of all files that are called like images; links are followed, once."""
    pending, seen = [""], {os.path.realpath(root)}
    while pending:
        prefix = pending.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if not entry.is_symlink() or (real := os.path.realpath(entry.path)) not in seen:
                        seen.update((real,) if entry.is_symlink() else ())
                        pending.append(f"{prefix}{entry.name}/")
                elif os.path.splitext(entry.name)[1].lower() in decoding.EXTENSIONS:
                    yield f"{prefix}{entry.name}"
