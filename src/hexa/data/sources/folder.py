"""Image files in a folder and its sub-folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np

from hexa.config import UserError, some
from hexa.data.sources import decode as decoding
from hexa.data.sources.source import SPLIT_NAMES, Labels, Source, by_split, location
from hexa.runtime import paths

_EXTENSIONS = decoding.EXTENSIONS | {".npy"}


class FolderSource(Source):
    """Image files in a folder: its sub-folders are the classes, if there are two or more and every image is in one.

    If all sub-folders are called train, test, val …, they are the splits, and their sub-folders the classes, numbered
    alike in all splits. Two of them may stand beside other folders only if there are no images in those. Otherwise
    everything is the split `train`. Raises UserError.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        if not argument:
            raise UserError(f"data '{spec}': no such folder; give the path of a folder")
        root = paths.folder(spec, location(argument))
        inside = _folders(root)
        splits = [name for name in inside if name.lower() in SPLIT_NAMES]
        others = [name for name in inside if name not in splits]
        if len(splits) > 1 and (
            others := [name for name in others if any(_image_files(root / name))]
        ):
            has = f"folders named as splits ({some(splits)}) and others ({some(others)})"
            remedy = f"move the others, or give one folder, such as {root / splits[0]}"
            raise UserError(f"data '{spec}': {root} has {has}; {remedy}")
        are_splits = bool(splits) and not others
        folders = (
            {key: root / name for key, name in by_split(splits).items()}
            if are_splits
            else {"train": root}
        )
        self.root = self._open_split(spec, split, folders)
        self._home = f"{self.root}{os.sep}"
        self.paths = sorted(_image_files(self.root))
        if not self.paths:
            known = ", ".join(sorted(_EXTENSIONS))
            raise UserError(
                f"data '{spec}': no images in {self.root} or its sub-folders; known extensions: {known}"
            )
        self._identify()
        tops = [path.split("/", 1)[0] if "/" in path else None for path in self.paths]
        classes = {top for top in tops if top is not None}
        if None not in tops and len(classes) > 1:
            if are_splits:
                classes.update(name for folder in folders.values() for name in _folders(folder))
            names = sorted(classes)
            number = {name: label for label, name in enumerate(names)}
            self._take_labels(np.array([number[top] for top in tops if top is not None]), names)

    def groups(self) -> Labels | None:
        parts = [tuple(path.split("/")[:-1]) for path in self.paths]
        several = Counter(part[0] for part in {part[:2] for part in parts} if len(part) > 1)
        if self.grouped is not None or self.classes is None or max(several.values(), default=0) < 2:
            return self.grouped
        names = [part[1] if len(part) > 1 else f"/{row}" for row, part in enumerate(parts)]
        return np.unique(names, return_inverse=True)[1]


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(
            entry.name
            for entry in entries
            if _kind(entry) == "folder" and not entry.name.startswith(".")
        )


def _image_files(root: Path) -> Iterable[str]:
    """The paths, relative to `root`, of all files with an image extension; linked folders are visited once.

    A broken link counts as an unreadable image, which is listed later; pipes and devices are skipped.
    """
    pending, seen = [""], {os.path.realpath(root)}
    while pending:
        prefix = pending.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                kind = _kind(entry)
                if kind == "folder":
                    if not entry.is_symlink() or (real := os.path.realpath(entry.path)) not in seen:
                        seen.update((real,) if entry.is_symlink() else ())
                        pending.append(f"{prefix}{entry.name}/")
                elif kind == "file" and os.path.splitext(entry.name)[1].lower() in _EXTENSIONS:
                    yield f"{prefix}{entry.name}"


def _kind(entry: os.DirEntry[str]) -> Literal["folder", "file", "other"]:
    with suppress(OSError):  # a circular link, or no permission
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() or not os.path.exists(entry.path) else "other"
    return "file"
