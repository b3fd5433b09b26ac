"""Reads image files in a folder and its sub-folders."""

from __future__ import annotations

import itertools
import os
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
from hexa.data.sources.splits import SPLIT_NAMES, by_split, split_of
from hexa.runtime import paths

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
        if num_folders > 1:
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
    """Return {split: folder}, from the folder, or from the only folder with images in it, and so on; {"train": root} without splits."""
    tops = [root]
    seen: set[str] = set()
    while len(tops) == 1:
        top = tops[0]
        found = _split_folders(top, inside, spec)
        if len(found) > 1 or (found and top == root):
            return found
        place = os.path.realpath(top)
        if place in seen:  # a link to a folder above
            break
        seen.add(place)
        used = (top / name for name in _folders(top) if _has_images(top / name, inside))
        tops = list(itertools.islice(used, 2))
    return {"train": root}


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
    wrapping = [folder for folder in (top, *top.parents) if folder.is_relative_to(root)]
    for folder in reversed(wrapping):
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


def _split_folders(root: Path, inside: paths.Inside, spec: str) -> dict[str, Path]:
    """Return {split: folder} if all sub-folders with images have names of splits; otherwise an empty mapping.

    Raises UserError if a folder with train in its name is next to a folder with another split in its name.
    """
    names = _folders(root)
    splits = [name for name in names if name.lower() in SPLIT_NAMES]
    others = [name for name in names if name not in splits]
    if splits:
        others = [name for name in others if _has_images(root / name, inside)]
    if splits and not others:
        return {split: root / name for split, name in by_split(splits).items()}
    alike = [name for name in names if split_of(name)[0] and _has_images(root / name, inside)]
    train = [name for name in alike if "train" in split_of(name)[0].lower()]
    if not train or train == alike:
        return {}
    unusual = [name for name in alike if name not in splits]
    what = f"named as splits ({some(splits)}) and others ({some(others)}); move the others"
    if unusual:
        what = (
            f"that look like splits ({some(alike)}); rename {some(unusual)} to train, test or val"
        )
    raise UserError(
        f"data '{spec}': {root} has folders {what}, or give one folder, such as {root / train[0]}"
    )


def _has_images(folder: Path, inside: paths.Inside) -> bool:
    return any(_image_files(folder, Counter(), inside))


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
