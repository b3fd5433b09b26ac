"""Checks that paths given by a user exist, before the slow imports of the libraries that read them."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hexa.config import UserError


def weights(text: str) -> tuple[Path, str | None]:
    """The folder or file of a backbone's name, PATH or PATH#NETWORK, and the network. Raises UserError.

    timm's spelling of a folder, local-dir:PATH, is accepted.
    """
    path, network = Path(text.removeprefix("local-dir:")), None
    if not path.exists() and "#" in path.name:
        file, _, network = str(path).rpartition("#")
        path = Path(file)
    if not path.exists():
        problem = "no such run, file or network (a recipe has no weights until it is trained)"
        raise UserError(f"{text}: {problem}; give a run folder, a file, timm:NAME or random:NAME")
    return path, network


class Named(NamedTuple):
    """The parts of a source's name, `SOURCE,max_value=N#SPLIT`. source: with the option, without the split."""

    source: str
    body: str
    max_value: int | None
    split: str | None


def parts(spec: str) -> Named:
    """The parts of a source's name. What names a file or folder as it stands has neither split nor option.

    Raises UserError for a max_value that is not an integer above 0.
    """
    source, mark, end = spec.rpartition("#")
    split: str | None = end
    # no split has such a name, but a pattern, a folder or an option may
    if not mark or _is_there(spec) or re.search(r"[/\\*?{},=]", end):
        source, split = spec, None
    option = None if _is_there(source) else re.fullmatch(r"(.*),max_value=(.*)", source)
    if option is None:
        return Named(source, source, None, split)
    if not re.fullmatch(r"0*[1-9]\d{0,17}", option[2], re.ASCII):
        raise UserError(f"data '{spec}': max_value must be an integer above 0, got '{option[2]}'")
    return Named(source, option[1], int(option[2]), split)


def _is_there(source: str) -> bool:
    """True if a source's name, with KIND: or without, is that of a file or folder."""
    argument = source.partition(":")[2]
    return os.path.exists(location(source)) or (
        argument != "" and os.path.exists(location(argument))
    )


def composed(name: str) -> str:
    """A name in the normal form NFC, so that names match whatever form a file system or a program gave them."""
    return unicodedata.normalize("NFC", name)


def location(argument: str) -> Path:
    """A path given by a user, which may begin with ~, and whose names may have another normal form than the files'."""
    path = Path(os.path.expanduser(argument))
    if os.path.exists(path):
        return path
    found = Path()
    for part in path.parts:
        forms = (part, unicodedata.normalize("NFC", part), unicodedata.normalize("NFD", part))
        found /= next((form for form in forms if os.path.exists(found / form)), part)
    return found


def folder(spec: str, path: Path) -> Path:
    """`path`, the folder of a source named `spec`. Raises UserError."""
    if not path.is_dir():
        problem = "is a file, not a folder" if path.is_file() else "no such folder"
        near = difflib.get_close_matches(path.name, [one.name for one in path.parent.glob("*/")], 1)
        remedy = f"did you mean '{path.parent / near[0]}'?" if near else "give the path of a folder"
        raise UserError(f"data '{spec}': {problem}: {path}; {remedy}")
    return path


def check(backbones: Iterable[str], sources: Iterable[str]) -> None:
    """Raise UserError for backbones and folders of images that do not exist, as far as names tell."""
    for name in backbones:
        if ":" not in name:
            weights(name)
    for name in sources:
        body = parts(name).body
        path = body.removeprefix("folder:")
        if path and ":" not in path and (path != body or os.path.sep in path):
            place = location(path)
            if not place.exists():
                folder(name, place)
