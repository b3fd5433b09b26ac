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

_SEPARATOR = re.compile("[-._]")
_WORD = re.compile(rf"(?<![a-z])({'|'.join(SPLIT_NAMES)})(?![a-z])", re.IGNORECASE)


def choose_split(spec: str, split: str | None, splits: Iterable[str]) -> str:
    """Return `split` (default: train, test, or the only split). Raises UserError for an unknown split and without a default."""
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
    beginning of the name is the split, or `train` if all names begin alike. If a split would have files of several data
    sets, such as train-0.tar and train_mini-0.tar, each data set has splits of its own. Raises UserError like `by_split`.
    """
    given = list(files)
    common = Path(os.path.commonpath([file.parent for file in given]))
    found = [_split_of_file(file, common) for file in given]
    are_mixed = len({*found}) > len({split for split, _ in found})
    groups: dict[str, list[Path]] = {}
    for file, (split, of_data_set) in zip(given, found, strict=True):
        groups.setdefault(of_data_set if are_mixed else split, []).append(file)
    if len(groups) == 1 and not SPLIT_NAMES.keys() & {name.lower() for name in groups}:
        return {"train": given}
    return {split: groups[name] for split, name in by_split(groups).items()}


def named_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of a name or path that have letters; numbers are parts of one data set."""
    return tuple(part for part in parts if any(map(str.isalpha, part)))


def _split_of_file(file: Path, common: Path) -> tuple[str, str]:
    """Return the split of a file, and the split with the name of its data set. common: folder of all files."""
    split, of_data_set = split_of(file.name)
    if split:
        return split, of_data_set
    folders = file.parent.relative_to(common).parts
    split = next(filter(None, (split_of(name)[0] for name in reversed(folders))), "")
    if not split and common.name.lower() in SPLIT_NAMES:
        split = common.name
    # the beginning of the name, without a number
    beginning = re.sub(r"(^|_)\d+$", "", re.split("[.-]", file.name)[0])
    split = split or beginning or "train"
    return split, split


def split_of(name: str) -> tuple[str, str]:
    """Return the split in a file name, and the split with the words around it; two empty texts without a split.

    If a name has several splits, they are joined by "-".
    """
    stem = os.path.splitext(name)[0]
    found = _WORD.search(stem)
    if found is None:
        return "", ""
    split = "-".join(dict.fromkeys(_WORD.findall(stem)))
    before = _SEPARATOR.split(stem[: found.start()])
    after = [part for part in _SEPARATOR.split(stem[found.end() :]) if part]
    return split, "-".join(named_parts([*before, split, *after[:1]]))
