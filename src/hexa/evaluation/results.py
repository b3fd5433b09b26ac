"""Results of evaluations: a JSON object that carries its protocol, and the file of a run that collects them."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import Any

from hexa.config import UserError
from hexa.runtime.alone import alone
from hexa.runtime.files import sweep, write_whole
from hexa.runtime.packages import version

Result = dict[str, Any]


def versions() -> dict[str, str]:
    """The software that made a number."""
    packages = ("hexa", "torch", "torchvision", "timm", "scikit-learn", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def write(result: Result, path: Path) -> None:
    """One result as a file, at once or not at all."""
    _replace(path, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def append(result: Result, path: Path) -> None:
    """Add a result to the list in `path`. Raises UserError if the file holds something else.

    Evaluations of one run may end at the same moment, also while it is training: they take turns.
    """
    with alone(path.with_name(f".{path.name}.lock"), "writes there", patience=math.inf):
        sweep(path.parent, path.name)
        _replace(path, json.dumps([*read(path), result], indent=2, ensure_ascii=False) + "\n")


def read(path: Path) -> list[Result]:
    """The results in `path`, none if it isn't there. Raises UserError if the file holds something else."""
    if not path.exists():
        return []
    try:
        stored = json.loads(path.read_text())
    except ValueError:
        raise UserError(f"{path}: not JSON; move it away and evaluate again") from None
    if not isinstance(stored, list):
        raise UserError(f"{path}: holds no list of results; move it away and evaluate again")
    return stored


def _replace(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
