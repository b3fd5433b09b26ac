"""Reads image files in a folder and its sub-folders."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from hexa.config import UserError, some
from hexa.data.sources import decode as decoding
from hexa.data.sources.source import Labels, Source
from hexa.data.sources.splits import SPLIT_NAMES, by_split
from hexa.runtime import paths

#: A word for a split in the name of a folder.
_SPLIT = re.compile(
    rf"(?<![a-z])({'|'.join((*SPLIT_NAMES, 'dev', 'eval'))})(set)?(?![a-z])", re.IGNORECASE
)
#: Most images that are left out because they are next to folders of splits or classes; more are not there by mistake.
_MOST_STRAY = 10


class FolderSource(Source):
    """Image files in a folder. Sub-folders are classes if there are at least two and if every image is in a sub-folder.

    Contents decide which files are images; other files and hidden files are counted in `left_out`. If all sub-folders
    with images have names of splits (train, test, val …), they are the splits, and their sub-folders the classes, with
    equal numbers in all splits; a few images next to them are left out. Otherwise, all images are the split `train`.
    Raises UserError if it is not clear whether sub-folders are splits or classes.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        if not argument:
            raise UserError(f"data '{spec}': no such folder; give the path of a folder")
        root = paths.folder(spec, paths.location(argument))
        inside = paths.Inside(spec, root)
        folders = _splits(root, inside, spec)
        stray = _next_to_splits(root, folders, split, inside)
        self.root = self._open_split(spec, split, folders)
        self._home = f"{self.root}{os.sep}"
        self.left_out = Counter()
        if stray:
            self.left_out["next to the splits"] = len(stray)
        self.paths = sorted(_image_files(self.root, self.left_out, inside))
        where = f"{self.root} or its sub-folders"
        formats = f"hexa reads {', '.join(decoding.ALL)}"
        remedies = (paths.instead(kind, argument) for kind in self.left_out)
        self._check_not_empty(where, f"; {next(filter(None, remedies), formats)}")
        self._identify()
        tops = [paths.composed(path.split("/")[0]) for path in self.paths if "/" in path]
        classes = set(tops)
        if len(tops) < len(self.paths) or len(classes) == 1:
            self._explain(len(classes))
        else:
            if self.root != root:  # a class has the same number in all splits
                names = (name for folder in folders.values() for name in _folders(folder))
                classes.update(map(paths.composed, names))
            number = {name: label for label, name in enumerate(sorted(classes))}
            self._take_labels(np.array([number[top] for top in tops]), sorted(classes))

    def _explain(self, num_folders: int) -> None:
        """Say why the images have no labels. num_folders: number of sub-folders with images."""
        loose = [path for path in self.paths if "/" not in path]
        if num_folders > 1 and len(loose) <= _MOST_STRAY:
            self.unfit_labels = f"no class folder holds {some(loose)}; move such images into one"
        elif num_folders == 1 and not loose:
            name = self.paths[0].split("/")[0]
            self.no_labels = (
                f"there is one class folder, {name}; give two or more, or {self.root / name} if it "
                "holds them"
            )

    def groups(self) -> Labels | None:
        parts = [tuple(path.split("/")[:-1]) for path in self.paths]
        several = Counter(part[0] for part in {part[:2] for part in parts} if len(part) > 1)
        if self.grouped is not None or self.classes is None or max(several.values(), default=0) < 2:
            return self.grouped
        names = [part[1] if len(part) > 1 else f"/{row}" for row, part in enumerate(parts)]
        return np.unique(names, return_inverse=True)[1]


def _splits(root: Path, inside: paths.Inside, spec: str) -> dict[str, Path]:
    """Return {split: folder}, from the folder or from its only sub-folder with images; all images are `train` if neither has splits."""
    names = _folders(root)
    used = (name for name in names if any(_image_files(root / name, Counter(), inside)))
    tops = list(itertools.islice(used, 2))
    if len(tops) == 1 and tops[0].lower() not in SPLIT_NAMES:
        top = root / tops[0]
        inner = _split_folders(top, _folders(top), inside, spec)
        if len(inner) > 1:
            return inner
    return _split_folders(root, names, inside, spec) or {"train": root}


def _next_to_splits(
    root: Path, folders: dict[str, Path], split: str | None, inside: paths.Inside
) -> list[str]:
    """Return the paths of images that are in no split because they are next to the folders of splits.

    folders: all splits. split: the chosen split. Raises UserError for more than a few images, and without a split `train`,
    unless another split is chosen.
    """
    if root in folders.values():
        return []
    top = next(iter(folders.values())).parent
    found: list[str] = []
    for folder in {str(root): root, str(top): top}.values():
        # the images of the folder itself come first
        images = _image_files(folder, Counter(), inside)
        loose = itertools.takewhile(lambda path: "/" not in path, images)
        found += sorted(str(folder / path) for path in loose)
    is_clear = len(found) <= _MOST_STRAY and "train" in folders
    if found and not is_clear and split in (None, "train"):
        names = [folder.name for folder in folders.values()]
        raise UserError(
            f"data '{inside.spec}': {top} has folders named as splits ({some(names)}) and images "
            f"next to them ({some(found, most=2)}); move the images, for example into "
            f"{top / 'train'}, or give one folder, such as {top / names[0]}"
        )
    return found


def _split_folders(
    root: Path, names: list[str], inside: paths.Inside, spec: str
) -> dict[str, Path]:
    """Return {split: folder} if all sub-folders with images have names of splits; otherwise an empty mapping.

    names: all sub-folders. Raises UserError for names of splits next to others, and for folders such as `training_set` that
    hold further folders.
    """
    splits = [name for name in names if name.lower() in SPLIT_NAMES]
    others = [name for name in names if name not in splits]
    if splits:
        others = [name for name in others if any(_image_files(root / name, Counter(), inside))]
    if splits and not others:
        return {split: root / name for split, name in by_split(splits).items()}
    if len(splits) > 1:
        raise UserError(
            f"data '{spec}': {root} has folders named as splits ({some(splits)}) and others "
            f"({some(others)}); move the others, or give one folder, such as {root / splits[0]}"
        )
    alike = [name for name in names if _SPLIT.search(name) and _is_nested(root / name, inside)]
    if len(alike) > 1:
        raise UserError(
            f"data '{spec}': {root} has folders that look like splits ({some(alike)}); name them "
            f"train and test, or give one folder, such as {root / alike[0]}"
        )
    return {}


def _is_nested(folder: Path, inside: paths.Inside) -> bool:
    """True if a sub-folder has images."""
    return any(any(_image_files(folder / name, Counter(), inside)) for name in _folders(folder))


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(
            entry.name
            for entry in entries
            if _kind(entry) == "folder" and not _is_hidden(entry.name)
        )


def _image_files(root: Path, left_out: Counter[str], inside: paths.Inside) -> Iterator[str]:
    """Yield the paths of all images, relative to `root`; linked folders are visited once.

    left_out: counts other files by suffix. A broken link with an image suffix counts as an image, and is reported as
    unreadable later. Raises UserError for links to images and folders outside of the source.
    """
    inside.check([f"{root}{os.sep}"], "the folder")
    pending = [""]
    seen = {os.path.realpath(root)}
    while pending:
        prefix = pending.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                kind = _kind(entry)
                if _is_hidden(entry.name):
                    left_out["__MACOSX" if entry.name == "__MACOSX" else "hidden"] += 1
                elif kind == "folder":
                    if entry.is_symlink():
                        inside.check([entry.path], "a link")
                        real = os.path.realpath(entry.path)
                        if real in seen:
                            continue
                        seen.add(real)
                    pending.append(f"{prefix}{entry.name}/")
                elif kind == "other":
                    left_out["special"] += 1
                else:
                    reason = decoding.why_left_out(entry.name, partial(decoding.read, entry.path))
                    if reason is not None:
                        left_out[reason] += 1
                        continue
                    if entry.is_symlink():
                        inside.check([entry.path], "a link")
                    yield f"{prefix}{entry.name}"


def _is_hidden(name: str) -> bool:
    """True for hidden files and folders, and for the folder __MACOSX that macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def _kind(entry: os.DirEntry[str]) -> Literal["folder", "file", "other"]:
    with suppress(OSError):  # a circular link, or no permission
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() or not os.path.exists(entry.path) else "other"
    return "file"
