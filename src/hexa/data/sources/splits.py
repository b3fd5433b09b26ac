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
#: Common names of splits -> names in hexa.
SPLIT_NAMES = {name: split for split, names in _SPLITS.items() for name in names}

_SEPARATOR = re.compile("[-._]")
#: A word for a split in a name. Words that are not in SPLIT_NAMES are splits of their own.
_WORD = re.compile(
    rf"(?<![a-z])({'|'.join(SPLIT_NAMES)}|trainval|dev|eval)(set)?(?![a-z])", re.IGNORECASE
)
#: The number of a shard, or a hash: 00001, shard0, 1f0a9b.
_NUMBER = re.compile(r"[^a-z]*|.*\d\W*|[\da-f]+", re.IGNORECASE)


def choose_split(spec: str, split: str | None, splits: Iterable[str]) -> str:
    """Return `split` (default: train, or the only split), by any of its names; without a split `test`, `val` replaces it.

    Raises UserError for an unknown split.
    """
    known = list(splits)
    if not known:
        raise UserError(f"data '{spec}': the source has no splits")
    asked = split or (known[0] if len(known) == 1 else "train")
    chosen = asked if asked in known else SPLIT_NAMES.get(asked.lower())
    if chosen == "test" and chosen not in known:
        chosen = "val"
    if chosen not in known:
        example = next((name for name in known if "train" in name), known[0])
        raise UserError(
            f"data '{spec}': no split '{asked}'; choose one of its splits ({some(known)}), such "
            f"as {spec}#{example}"
        )
    return chosen


def by_split(names: Iterable[str]) -> dict[str, str]:
    """Return {split: name} with train and test first. Raises UserError if two names mean the same split."""
    names_of: dict[str, str] = {}
    for name in names:
        other = names_of.setdefault(SPLIT_NAMES.get(name.lower(), name), name)
        if other != name:
            raise UserError(
                f"'{other}' and '{name}' are both names of one split; rename or move one of them"
            )
    order = sorted(names_of, key=lambda split: (split != "train", split != "test", split))
    return {split: names_of[split] for split in order}


def files_by_split(files: Iterable[Path], is_pattern: bool = False) -> dict[str, list[Path]]:
    """Group files by the split that their names contain as a word: imagenet-train-00000-of-00002.parquet is `train`.

    If a name has no such word, the folders of the file, below the folder of all files, may have one. If only some files
    have a split, all files are `train`. If none has a split, the beginning of the name is the split, or `train` if all
    names begin alike. A single file is `train`, unless its name begins with a split. If a split would have files of
    several data sets, such as train-0.tar and train_mini-0.tar, each data set has splits of its own.

    is_pattern: a user chose the files, so that they are one data set. Raises UserError like `by_split`, and if some files
    have no split and the name of another one begins or ends with a split such as test, numbers aside.
    """
    given = list(files)
    if len(given) == 1 and not _WORD.match(given[0].name):
        return {"train": given}
    common = Path(os.path.commonpath([file.parent for file in given]))
    found = [_split_of_file(file, common) for file in given]
    names = [split for split, _, _ in found]
    if "" in names:
        other = given[names.index("")]
        for file, (split, before, after) in zip(given, found, strict=True):
            is_inside = before and after
            if split and "train" not in split.lower() and not is_inside:
                raise UserError(
                    f"{file} is named as the split {split}, but {other} is not named as a split; "
                    "rename or move one of them"
                )
        if any(names) or is_pattern:
            return {"train": given}
        names = [_beginning(file) for file in given]
    elif not is_pattern:
        data_sets = _data_sets(found)
        if len({*data_sets}) > len({*names}):
            names = data_sets
    groups: dict[str, list[Path]] = {}
    for file, name in zip(given, names, strict=True):
        groups.setdefault(name, []).append(file)
    if len(groups) == 1 and not SPLIT_NAMES.keys() & {name.lower() for name in groups}:
        return {"train": given}
    return {split: groups[name] for split, name in by_split(groups).items()}


def named_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of a name or path that have letters; numbers, and partitions such as year=2026, are parts of one data set."""
    return tuple(part for part in parts if any(map(str.isalpha, part)) and "=" not in part)


def _split_of_file(file: Path, common: Path) -> tuple[str, str, str]:
    """Return `split_of` a file; the split alone if its folders have it. common: folder of all files."""
    found = split_of(file.stem)
    if found[0]:
        return found
    folders = file.parent.relative_to(common).parts
    split = next(filter(None, (split_of(name)[0] for name in reversed(folders))), "")
    if not split and common.name.lower() in SPLIT_NAMES:
        split = common.name
    return split, "", ""


def _beginning(file: Path) -> str:
    """Return the beginning of a file's name, without a number; "numbers" if it is one."""
    return re.sub(r"(^|_)\d+$", "", re.split("[.-]", file.name)[0]) or "numbers"


def _data_sets(found: list[tuple[str, str, str]]) -> list[str]:
    """Return each split with the words around it. The word after it counts if other files of this split have none."""
    plain = {(split, before) for split, before, after in found if not after}
    return [
        "-".join(filter(None, (before, split, after if (split, before) in plain else "")))
        for split, before, after in found
    ]


def split_of(name: str) -> tuple[str, str, str]:
    """Return the split in the stem of a name, and the words before and after it without numbers; empty texts without a split.

    If a name has several splits, they are joined by "-".
    """
    found = _WORD.search(name)
    if found is None:
        return "", "", ""
    split = "-".join(dict.fromkeys(word.group() for word in _WORD.finditer(name)))
    before = named_parts(_SEPARATOR.split(name[: found.start()]))
    after = next(filter(None, _SEPARATOR.split(name[found.end() :])), "")
    return split, "-".join(before), "" if _NUMBER.fullmatch(after) else after
