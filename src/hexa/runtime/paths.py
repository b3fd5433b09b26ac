"""Checks that paths given by a user exist, before the slow imports of the libraries that read
them."""

from __future__ import annotations

import difflib
import functools
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hexa.config import UserError

#: What to give instead of a file or a folder of files with this suffix; {} is its path.
_INSTEAD = {
    ".parquet": "write parquet:{}",
    ".tar": "write webdataset:{}",
    ".csv": "labels come from class folders or Parquet files, not from CSV files",
}


def weights(text: str) -> tuple[Path, str | None]:
    """Split a backbone's name, PATH or PATH#NETWORK, into its folder or file and the network.
    Raises UserError.

    timm's spelling of a folder, local-dir:PATH, is accepted.
    """
    path = Path(text.removeprefix("local-dir:"))
    network = None
    if not path.exists() and "#" in path.name:
        file, _, network = str(path).rpartition("#")
        path = Path(file)
    if not path.exists():
        raise UserError(
            f"{text}: no such run, file or network (a recipe has no weights before "
            "training); use a run folder, a file, timm:NAME or random:NAME"
        )
    return path, network


class Named(NamedTuple):
    """The parts of a source's name, `SOURCE,max_value=N,links=follow#SPLIT`.

    source: with the options, without the split.
    body: without both.
    """

    source: str
    body: str
    max_value: int | None
    split: str | None
    follows_links: bool = False


def parts(spec: str) -> Named:
    """Split a source's name into its parts. The name of an existing file or folder has neither
    split nor options.

    Raises UserError for a max_value that is not an integer above 0, and for links other than
    `follow`.
    """
    source, mark, end = spec.rpartition("#")
    split: str | None = end
    # split names do not contain these characters; patterns, folders and options may
    if not mark or _is_there(spec) or re.search(r"[/\\*?{},=]", end):
        source = spec
        split = None
    body = source
    options: dict[str, str] = {}
    while not _is_there(body):
        option = re.fullmatch(r"(.*),(max_value|links)=(.*)", body)
        if option is None:
            break
        body = option[1]
        options[option[2]] = option[3]
    most = options.get("max_value")
    if most is not None and not re.fullmatch(r"0*[1-9]\d{0,17}", most, re.ASCII):
        raise UserError(f"data '{spec}': max_value must be an integer above 0, got '{most}'")
    links = options.get("links")
    if links not in (None, "follow"):
        raise UserError(f"data '{spec}': links must be follow, got '{links}'")
    return Named(source, body, int(most) if most else None, split, links is not None)


def _is_there(source: str) -> bool:
    """True if a source's name, with or without KIND:, is an existing file or folder."""
    argument = source.partition(":")[2]
    return os.path.exists(location(source)) or (
        argument != "" and os.path.exists(location(argument))
    )


def composed(name: str) -> str:
    """Return a name in the normal form NFC, so that names from different file systems and programs
    match."""
    return unicodedata.normalize("NFC", name)


def location(argument: str) -> Path:
    """Return the path that a user gave; expands ~, and matches names in another Unicode normal
    form."""
    path = Path(os.path.expanduser(argument))
    if os.path.exists(path):
        return path
    found = Path()
    for part in path.parts:
        forms = (part, unicodedata.normalize("NFC", part), unicodedata.normalize("NFD", part))
        found /= next((form for form in forms if os.path.exists(found / form)), part)
    return found


def folder(spec: str, path: Path) -> Path:
    """Return `path`, the folder of a source named `spec`. Raises UserError if it is not a
    folder."""
    if not path.is_dir():
        problem = "no such folder"
        if path.exists():
            problem = "is a file, not a folder" if path.is_file() else "is not a folder"
        near = difflib.get_close_matches(path.name, [one.name for one in path.parent.glob("*/")], 1)
        remedy = f"did you mean '{path.parent / near[0]}'?" if near else "give the path of a folder"
        remedy = instead(path.suffix.lower(), path) or remedy
        raise UserError(f"data '{spec}': {problem}: {path}; {remedy}")
    return path


def real(folder: Path) -> list[Path]:
    """Return the folders that may contain the files of a folder once links are resolved: the folder
    itself, and the downloads of the hub's client, which links to them."""
    place = Path(os.path.realpath(folder))
    is_download = place.parent.name == "snapshots"
    return [place, place.parent.parent / "blobs"] if is_download else [place]


def instead(suffix: str, path: str | Path) -> str:
    """Return what to give instead of the path of files with this suffix; empty for other suffixes."""
    return _INSTEAD.get(suffix, "").format(path)


class Inside:
    """The folder of a data set; its files must be inside once links are resolved.

    Links out of the folder are followed only if the source's name ends with `,links=follow`. Names
    that lead out without a link, such as ../x.jpg in a list, are never followed.
    """

    def __init__(self, spec: str, root: Path, *others: Path) -> None:
        """spec: the source's name. others: more folders that may contain its files."""
        self.spec = spec
        self.root = os.path.abspath(root)
        self.places = [*real(root), *(Path(os.path.realpath(place)) for place in others)]
        self.follows_links = parts(spec).follows_links
        self._holds_folder = functools.cache(self._holds)

    def check(self, files: Iterable[str], whose: str) -> None:
        """Raise UserError with the first file that is not inside. whose: the file that lists these
        names."""
        for file in files:
            if os.path.abspath(file) == self.root:  # given by the user
                continue
            in_folder = self._holds_folder(os.path.dirname(file))
            if not in_folder or (os.path.islink(file) and not self._holds(file)):
                raise UserError(
                    f"data '{self.spec}': {whose} names {file} outside of the data set; "
                    f"{self._remedy(file)}"
                )

    def _holds(self, path: str) -> bool:
        if self.follows_links and self._is_named_inside(path):
            return True
        try:
            real = Path(os.path.realpath(path))
        except (OSError, ValueError):  # a name that no file can have
            return False
        return any(real.is_relative_to(place) for place in self.places)

    def _is_named_inside(self, path: str) -> bool:
        """True if the name itself is inside the folder, so that only a link leads out."""
        return Path(os.path.abspath(path)).is_relative_to(self.root)

    def _remedy(self, file: str) -> str:
        if not self._is_named_inside(file):
            return "copy the file into the folder, or use folder:PATH for its images"
        return f"to follow links that you trust, use {self.spec},links=follow"


def check(backbones: Iterable[str], sources: Iterable[str]) -> None:
    """Raise UserError for backbones and folders of images that do not exist, as far as names
    show."""
    for name in backbones:
        if ":" not in name:
            weights(name)
    for name in sources:
        body = parts(name).body
        path = body.removeprefix("folder:")
        if path and ":" not in path and (path != body or os.path.sep in path):
            folder(name, location(path))
