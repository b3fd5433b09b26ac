"""The files of a study's folder: one for each run, with its evaluations, each written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hexa.config import whole_characters
from hexa.run.names import BACKBONE
from hexa.runtime import files, parsing
from hexa.runtime.files import write_text
from hexa_paper.request import refuse

#: The folders of a study.
RESULTS = "results"
RUNS = "runs"
#: Held by the process that works on a study.
LOCK = ".lock"


def run_folder(out: Path, name: str) -> Path:
    """The folder of a run."""
    return out / RUNS / name


def is_trained(out: Path, name: str) -> bool:
    """True if the training of a run has ended."""
    return (run_folder(out, name) / BACKBONE).is_file()


def _file(out: Path, name: str) -> Path:
    return out / RESULTS / f"{name}.json"


def names(out: Path) -> list[str]:
    """The names of all runs that have results."""
    return sorted(path.stem for path in (out / RESULTS).glob("*.json"))


def read(out: Path, name: str) -> dict[str, Any] | None:
    """The results of a run; None if there are none. Raises UserError for a damaged file."""
    path = _file(out, name)
    with suppress(FileNotFoundError):
        found = parsing.read_json(path, "remove it and give the command again")
        whole = isinstance(found, dict) and isinstance(found.get("results"), dict)
        refuse(not whole, f"{path}: has no results; remove it and give the command again")
        return dict(found)
    return None


def store(out: Path, name: str, found: Mapping[str, Any]) -> None:
    """Write the results of a run."""
    write(_file(out, name), found)


def write(path: Path, content: str | Mapping[str, Any]) -> None:
    """Write a text, or an object as JSON."""
    if not isinstance(content, str):
        content = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_text(path, whole_characters(content))


def check(out: Path) -> None:
    """Raise UserError if results cannot be written to `out`, or if it holds something else."""
    files.check_target_folder(out)
    if out.is_dir():
        there = {path.name for path in out.iterdir()}
        other = there and not there & {RESULTS, RUNS, LOCK}
        refuse(other, f"{out}: holds something other than a study; give another --out")
