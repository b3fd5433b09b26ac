"""Splits of a source, by the names of folders, files and parts of data sets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hexa.config import UserError, some

_SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation"),
    "unlabeled": ("unlabeled", "unlabelled"),
}
#: Common names of splits -> names in hexa. Without a test split, the validation split is `test`.
SPLIT_NAMES = {name: split for split, names in _SPLITS.items() for name in names}

_WORD = re.compile(rf"(?<![a-z])({'|'.join(SPLIT_NAMES)})(?![a-z])", re.IGNORECASE)


def choose_split(spec: str, split: str | None, splits: Iterable[str]) -> str:
    """Return `split` (default: train, test, or the only split). Raises UserError for an unknown split, and if there is no default."""
    known = list(splits)
    if not known:
        raise UserError(f"data '{spec}': the source has no splits")
    if split is not None and split not in known:
        raise UserError(f"data '{spec}': no split '{split}'; its splits: {some(known)}")
    if split is None and len(known) > 1 and known[0] not in ("train", "test"):
        raise UserError(
            f"data '{spec}': no split 'train'; choose one of its splits ({some(known)}), such as "
            f"{spec}#{known[0]}"
        )
    return split or known[0]


def by_split(names: Iterable[str]) -> dict[str, str]:
    """Return {split: name} with train and test first. Raises UserError if two names mean the same split."""
    names_of: dict[str, str] = {}
    for name in names:
        other = names_of.setdefault(SPLIT_NAMES.get(name.lower(), name), name)
        if other != name:
            raise UserError(
                f"'{other}' and '{name}' are both names of one split; rename or move one of them"
            )
    if "val" in names_of and "test" not in names_of:
        names_of["test"] = names_of.pop("val")
    order = sorted(names_of, key=lambda split: (split != "train", split != "test", split))
    return {split: names_of[split] for split in order}


def files_by_split(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Group files by the split that their names contain as a word: imagenet-train-00000-of-00002.parquet is `train`.

    If a name has no such word, the folders of the file, below the folder of all files, may have one. Otherwise the
    beginning of the name is the split, or `train` if all names begin alike. Raises UserError like `by_split`, and if names
    of one split begin differently before the word.
    """
    given = list(files)
    common = Path(os.path.commonpath([file.parent for file in given]))
    groups: dict[str, list[Path]] = {}
    for file in given:
        folders = file.parent.relative_to(common).parts
        name = next(filter(None, map(_words, (file.name, *reversed(folders)))), "")
        if not name and common.name.lower() in SPLIT_NAMES:
            name = common.name
        groups.setdefault(name or _beginning(file.name) or "train", []).append(file)
    for split, of_split in groups.items():
        sets = {_data_set(file.name): file.name for file in of_split}
        if len(sets) > 1:
            raise UserError(
                f"the split {split} has files of several data sets ({some(sets.values())}); give one "
                "of them by a folder or pattern of its own"
            )
    if len(groups) == 1 and not SPLIT_NAMES.keys() & {name.lower() for name in groups}:
        return {"train": given}
    return {split: groups[name] for split, name in by_split(groups).items()}


def named_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of a name or path that have letters; numbers are parts of one data set."""
    return tuple(part for part in parts if any(map(str.isalpha, part)))


def _words(name: str) -> str:
    """Return the names of splits in a file name, joined by "-"; an empty text if there is none."""
    return "-".join(dict.fromkeys(_WORD.findall(name)))


def _data_set(name: str) -> tuple[str, ...]:
    """Return what stands in a file name before the name of a split."""
    found = _WORD.search(name)
    return named_parts(re.split("[-._]", name[: found.start()])) if found else ()


def _beginning(name: str) -> str:
    """Return the part of a file name before the first "." or "-", without a number at its end."""
    return re.sub(r"(^|_)\d+$", "", re.split("[.-]", name)[0])
