"""What a study leaves in its folder, each file written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from hexa.config import UserError, whole_characters
from hexa.runtime import parsing, targets
from hexa.runtime.files import write_text
from hexa.runtime.lock import locked

#: What all runs of a folder have in common.
STUDY = "study.json"
#: What an image costs in every arm on this machine.
COSTS = "costs.json"
#: All scores, settings and machines.
RESULT = "result.json"


def refuse(when: object, message: str) -> None:
    """Raise UserError with a message if `when` is true."""
    if when:
        raise UserError(message)


def read(path: Path) -> Any:
    """The JSON in a file, None if there is no file. Raises UserError for another content."""
    with suppress(FileNotFoundError):
        return parsing.read_json(path, "remove it and give the command again")


def write(path: Path, content: str | Mapping[str, Any]) -> Path:
    """A text, or an object as JSON."""
    text = (
        content
        if isinstance(content, str)
        else json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    )
    return write_text(path, whole_characters(text))


def lock_file(out: Path, name: str = "study") -> Path:
    """What the process that works on the study, or trains the job of this name, holds."""
    return out / "locks" / name


def at_work(out: Path) -> AbstractContextManager[None]:
    """Have the study to yourself. Raises UserError if another process works on it."""
    return locked(
        lock_file(out), f"works on {out} already; wait until it ends, or give another --out"
    )


def check(out: Path, study: dict[str, Any]) -> bool:
    """Whether `out` is this study's already. Raises UserError if it is another's or holds something else.

    A study that was planned only, and has no run yet, gives way to another.
    """
    refuse(out.exists() and not out.is_dir(), f"--out {out}: is a file; give a folder")
    known = read(out / STUDY)
    if known is None:
        # runs may be there first, where others trained them
        other = out.is_dir() and {path.name for path in out.iterdir()} - {"runs", "locks"}
        refuse(other, f"{out}: holds something other than a study; give another --out")
        return False
    there, asked = ({**one, **one.get("fields", {}), "fields": None} for one in (known, study))
    differ = [
        f"{name} {_shown(there.get(name))} there, {_shown(asked.get(name))} here"
        for name in there | asked
        if there.get(name) != asked.get(name)
    ]
    begun = [*out.glob("jobs/*"), *out.glob("runs/*")]
    refuse(
        differ and begun, f"{out}: holds another study ({'; '.join(differ)}); give another --out"
    )
    return not differ


def _shown(value: object) -> str:
    return (
        "not set" if value is None else json.dumps(value) if isinstance(value, list) else str(value)
    )


def claim(out: Path, study: dict[str, Any]) -> None:
    """Write into the folder whose it is, which `check` must allow. Raises UserError if nothing can be written there."""
    targets.check_folder(out)
    if not check(out, study):
        with at_work(out):  # nobody measures or trains there
            check(out, study)
            write(out / STUDY, study)


def job_file(out: Path, name: str) -> Path:
    """Where a finished job is stored."""
    return out / "jobs" / f"{name}.json"


def seeds_of(out: Path) -> list[int]:
    """The seeds that finished runs of the comparison were made with."""
    jobs = [read(path) for path in (out / "jobs").glob("*.json")]
    return sorted({job["seed"] for job in jobs if job.get("phase") == "final"})


def stored(out: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is stored of a job; None if it is not there. Raises UserError if it was made with other settings."""
    path = job_file(out, record["name"])
    job: dict[str, Any] | None = read(path)
    other = job is not None and job.get("identity") != record["identity"]
    how = "was made with other settings or by an earlier version"
    refuse(other, f"{path}: {how}; give another --out, or remove {out / 'jobs'}")
    return job
