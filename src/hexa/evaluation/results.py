"""Results of evaluations: a JSON object that carries its protocol, and the file of a run that collects them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hexa.config import UserError, whole_characters
from hexa.runtime import files, parsing
from hexa.runtime.files import describe, sweep, write_text
from hexa.runtime.lock import locked

Result = dict[str, Any]


class NotWritten(UserError):
    """A result that could not be written where it should be. It is not lost: `result` holds it."""

    def __init__(self, result: Result, problems: list[str]) -> None:
        super().__init__(f"the result was not written: {'; '.join(problems)}")
        self.result = result


def check(out: Path | None, collected: Path | None) -> str | None:
    """Before the work: raise UserError if its result can be kept nowhere, or `collected` holds anything but results.

    Returns why a run can't collect the result, where it is kept elsewhere.
    """
    if out is not None:
        files.check_target(out)
    if collected is None:
        return None
    read(collected)
    try:
        files.check_target(collected, option="run")
    except UserError as error:
        if out is None:
            raise UserError(f"{error}, with --out FILE.json") from None
        return f"not added to the run: {error}"
    return None


def keep(result: Result, out: Path | None, collected: Path | None) -> None:
    """Write the result wherever it belongs. Raises NotWritten if that fails anywhere."""
    problems = []
    for path, store in ((out, write), (collected, append)):
        try:
            if path is not None:
                store(result, path)
        except (
            OSError,
            UserError,
        ) as error:  # results.json may have become something else meanwhile
            problems.append(describe(error) if isinstance(error, OSError) else str(error))
    if problems:
        raise NotWritten(result, problems)


def write(content: Result | list[Result], path: Path) -> None:
    """Write a result, or a list of them, atomically; surrogates, of file names that are not UTF-8, as escapes."""
    write_text(path, whole_characters(json.dumps(content, indent=2, ensure_ascii=False) + "\n"))


def append(result: Result, path: Path) -> None:
    """Add a result to the list in `path`. Raises UserError if the file holds something else.

    Evaluations of one run may end at the same moment, also while it is training: they take turns.
    """
    with locked(path.with_name(f".{path.name}.lock"), "writes there", patience=math.inf):
        sweep(path.parent, path.name)
        write([*read(path), result], path)


def read(path: Path) -> list[Result]:
    """The results in `path`, none if it isn't there. Raises UserError if the file holds something else."""
    if not path.exists():
        return []
    remedy = "move it away and evaluate again"
    stored = parsing.read_json(path, remedy, within=path.parent)
    if not isinstance(stored, list):
        raise UserError(f"{path}: does not hold a list of results; {remedy}")
    return stored
