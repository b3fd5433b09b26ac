"""Checks that paths given by a user exist, before the slow imports of the libraries that read them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

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
        body = name.partition("#")[0]
        path = body.removeprefix("folder:")
        if (
            path
            and ":" not in path
            and (path != body or os.path.sep in path)
            and not Path(path).exists()
        ):
            folder(name, Path(os.path.expanduser(path)))
