"""The folder of a run: its lock, its state, and the command that continues it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import get_args

from hexa.config import UserError
from hexa.data.loading.store import UnreadableImages
from hexa.data.loading.workers import WorkerEnded
from hexa.data.sources.source import digest
from hexa.run.names import (
    ADAPTATION as ADAPTATION,
    BACKBONE as BACKBONE,
    BEST as BEST,
    CHECKPOINTS as CHECKPOINTS,
    CONFIG as CONFIG,
    LOCK as LOCK,
    REPORT,
    WINNER,
)
from hexa.runtime import checkpoints, parsing, rendezvous
from hexa.runtime.files import cache_folder, describe, sweep
from hexa.runtime.lock import locked
from hexa.runtime.packages import resume_command
from hexa.training import trackers
from hexa.training.journal import ENVIRONMENT, METRICS, TENSORBOARD

#: Seconds to wait for the end of a killed process.
PATIENCE = 5.0
#: Files that a training replaces, of which killed processes may leave temporary files.
_REPLACED = (CONFIG, ENVIRONMENT, METRICS, BACKBONE, BEST, trackers.FILE)
#: Everything else that a training reads or writes in its folder.
_USED = (LOCK, ADAPTATION, WINNER, REPORT, CHECKPOINTS, TENSORBOARD, *get_args(trackers.Name))


def note_of(data: str) -> Path:
    """Return the file in the user's cache folder that exists if a training of this user has opened the source `data`."""
    return cache_folder() / "sources" / digest(data)


def note(data: str) -> None:
    """Create the file `note_of(data)` if the cache folder is writable."""
    with suppress(OSError):
        note_of(data).parent.mkdir(parents=True, exist_ok=True)
        note_of(data).touch()


@contextmanager
def mine(folder: Path, say: Callable[[str], object] = lambda message: None) -> Iterator[bool]:
    """Create and lock the folder of a run on rank 0; yield True on rank 0.

    Temporary files of killed processes are removed. Other processes may still read the folder and add results to it.
    say: called with a warning if the file system has no locks. Raises UserError if another process trains in the folder,
    or if a link in it could lead out of it.
    """
    # before the processes connect, so that a failure needs no clean-up
    if os.environ.get("RANK", "0") != "0":
        yield False
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give another --out")
    for path in (folder / name for name in (*_REPLACED, *_USED)):
        if path.is_symlink():
            raise UserError(f"{path}: is a link; replace it by a copy of what it links to")
    what = (
        f"is already training in {folder}; wait until it ends, or stop it, then repeat the command"
    )
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder / LOCK, what, patience=PATIENCE, say=say))
        except OSError as error:
            begun = (folder / CONFIG).is_file()
            remedy = (
                f"make it writable, then continue with: {resume_command(folder)}"
                if begun
                else "give another --out"
            )
            raise UserError(f"{folder}: cannot be written ({describe(error)}); {remedy}") from None
        sweep(folder, *_REPLACED)
        sweep(folder / CHECKPOINTS)
        yield True


def is_ours(folder: Path) -> bool:
    """True if this torchrun began the run in `folder`; False if the folder is as good as empty.

    Raises UserError if the folder has other content.
    """
    there = {path.name for path in folder.iterdir()} - {LOCK, ADAPTATION}
    # a folder with environment.json alone belongs to a run that was killed at once
    if (
        not there
        or _is_stillborn(folder)
        or (there == {ENVIRONMENT} and _launcher(folder) is not None)
    ):
        return False
    if rendezvous.restarts() and _launcher(folder) == rendezvous.launcher():
        return (folder / CONFIG).is_file()
    if (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} holds a run; give another --out, or continue it with: {resume_command(folder)}"
        )
    raise UserError(f"{folder} is not an empty folder; give another --out")


def _is_stillborn(folder: Path) -> bool:
    """True if the run in `folder` ended with nothing to resume, so that a new run may replace it.

    The loss became non-finite before the first checkpoint, or the run ended before it logged a step. The caller holds
    the lock of the folder, so no process trains in it.
    """
    if (
        not (folder / CONFIG).is_file()
        or (folder / BACKBONE).exists()
        or (folder / CHECKPOINTS).exists()
    ):
        return False
    events = set[object]()
    if (folder / METRICS).exists():
        for _, fields in parsing.read_lines(folder / METRICS, sys.maxsize):
            events.add((fields or {}).get("event"))
    if "non-finite" in events:
        return True
    return "train" not in events and _launcher(folder) is not None


def _launcher(folder: Path) -> object:
    """Return the launcher in a run's environment.json; None if it is missing."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        text = parsing.read_text(folder / ENVIRONMENT, parsing.MOST_JSON)
        return parsing.from_json(text)["launcher"]
    return None


@contextmanager
def stopping_well(folder: Path) -> Iterator[None]:
    """Report a full disk, deleted images or a dead worker as a UserError that says how to continue."""
    try:
        yield
    except UnreadableImages as error:
        if not checkpoints.checkpoints(folder / CHECKPOINTS):  # nothing is lost
            raise
        raise UserError(
            f"{error}; if the images were removed during the run, put them back; {way_on(folder)}"
        ) from error
    except (WorkerEnded, OSError) as error:
        raise UserError(
            f"{describe(error) if isinstance(error, OSError) else error}; {way_on(folder)}"
        ) from error


def way_on(folder: Path) -> str:
    """Return the end of a message: the state of a stopped run, and the command that continues it."""
    if not folder.exists():
        return f"the run stops; {folder} is missing; if you moved the folder, continue with its new path"
    if not (folder / CONFIG).is_file():
        return f"the run stops; {folder} has nothing to continue from; start a new run"
    saved = checkpoints.checkpoints(folder / CHECKPOINTS)
    last = f"its last checkpoint is {saved[-1]}" if saved else "it has no checkpoint yet"
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > rendezvous.restarts():
        return f"the run stops; {last}; torchrun restarts the run"
    adapts = (folder / ADAPTATION).is_file()
    command = "the same command" if adapts else resume_command(folder)
    return f"the run stops; {last}; continue with: {command}"
