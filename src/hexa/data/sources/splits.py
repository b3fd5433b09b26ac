"""Splits of a source, by the names of folders, files and parts of data sets."""

from __future__ import annotations

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


def choose_split(spec: str, split: str | None, splits: Iterable[str]) -> str:
    """Return `split` (default: the first of `splits`). Raises UserError for an unknown split."""
    known = list(splits)
    if not known:
        raise UserError(f"data '{spec}': the source has no splits")
    if split is not None and split not in known:
        raise UserError(f"data '{spec}': no split '{split}'; its splits: {some(known)}")
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


def files_by_prefix(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Group files by the prefix before the first "." or "-", without a number: train-00000-of-00002.parquet and
    train_0.parquet are `train`. If the prefix names no split, the folder may name it.
    """
    groups: dict[str, list[Path]] = {}
    for file in files:
        name = re.sub(r"(^|_)\d+$", "", re.split("[.-]", file.name)[0])
        if name.lower() not in SPLIT_NAMES and file.parent.name.lower() in SPLIT_NAMES:
            name = file.parent.name
        groups.setdefault(name or "train", []).append(file)
    return groups


def files_by_split(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Group files by split, according to their prefixes. Raises UserError like `by_split`."""
    groups = files_by_prefix(files)
    return {split: groups[name] for split, name in by_split(groups).items()}
