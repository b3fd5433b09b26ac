"""The folder of a run: whose it is, one process at a time, and what is left in it when the run is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hexa.config import UserError
from hexa.data.workers import WorkerEnded
from hexa.runtime import checkpoints, parsing, peers
from hexa.runtime.alone import alone
from hexa.runtime.files import describe, sweep
from hexa.training import trackers
from hexa.training.journal import ENVIRONMENT, METRICS

CONFIG, BACKBONE, REPORT, CHECKPOINTS = "config.yaml", "backbone.safetensors", "report.html", "checkpoints"
#: What `hexa adapt` writes before anything else: its plan.
ADAPTATION = "adapt.json"
#: The backbone of the epoch that the monitor liked best.
BEST = "best.safetensors"
#: Held by the process that trains into the folder; there while it does, or after it was killed.
LOCK = ".lock"
#: Seconds that a process that was killed may take to be gone.
PATIENCE = 5.0


@contextmanager
def mine(folder: Path, say: Callable[[str], object] | None = None) -> Iterator[bool]:
    """Have a run's folder for this run alone, made if need be; of several processes the main one sees to it.

    Yields whether this is the main one. What killed processes left half written is removed. Others may read the folder
    meanwhile, and add results to it. say: told where the disk has no locks. Raises UserError if another process trains
    there.
    """
    # asked before the processes have found each other, so that nothing has to be undone
    if os.environ.get("RANK", "0") != "0":
        yield False
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give another --out")
    what = f"trains {folder} already; wait until it ends, or end it, and give the command again"
    with alone(folder / LOCK, what, patience=PATIENCE, say=say):
        sweep(folder, CONFIG, ENVIRONMENT, METRICS, BACKBONE, BEST, trackers.FILE)
        sweep(folder / CHECKPOINTS)
        yield True


def is_ours(folder: Path) -> bool:
    """Whether the run in `folder` is one that this torchrun began. Raises UserError if it is anything else of worth."""
    if _is_empty(folder) or _is_stillborn(folder):
        return False
    if peers.restarts() and _noted(folder, "launcher") == peers.launcher():
        return (folder / CONFIG).is_file()
    if (folder / CONFIG).is_file():
        raise UserError(f"{folder} holds a run; go on with 'hexa resume {folder}', or give another --out")
    raise UserError(f"{folder} is not an empty folder; give another --out")


def _is_empty(folder: Path) -> bool:
    """Whether there is nothing in a folder, or only what a run that was killed at once wrote first."""
    there = {path.name for path in folder.iterdir()} - {LOCK, ADAPTATION}
    return not there or (there == {ENVIRONMENT} and _process(folder) is not None)


def _is_stillborn(folder: Path) -> bool:
    """Whether a run in `folder` ended with nothing to go on from: it may start anew.

    Its loss stopped being finite before the first checkpoint; or it was of this machine and ended before it logged a
    step (unreadable images …), but not if its process still goes, or that can't be known.
    """
    if not (folder / CONFIG).is_file() or (folder / BACKBONE).exists() or (folder / CHECKPOINTS).exists():
        return False
    journal = folder / METRICS
    written = journal.read_text(errors="replace") if journal.exists() else ""
    if '"event": "non-finite"' in written:
        return True
    process = _process(folder)
    return process is not None and process.is_over() and '"event": "train"' not in written


def _process(folder: Path) -> peers.Peer | None:
    """The main process of the run in `folder`, if it noted it."""
    noted = _noted(folder, "process")
    try:
        found = peers.Peer(**noted)  # type: ignore[arg-type]
    except TypeError:  # something else
        return None
    return found if isinstance(found.pid, int) else None


def _noted(folder: Path, name: str) -> object:
    """What the run in `folder` noted of its environment; None if it didn't."""
    try:
        return parsing.from_json(parsing.read_text(folder / ENVIRONMENT, parsing.MOST_JSON))[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def stopping_well(folder: Path) -> Iterator[None]:
    """Around a run once its folder is written: a full disk, or a worker that ended, is one line with a way on."""
    try:
        yield
    except WorkerEnded as error:
        raise UserError(f"{error}; {way_on(folder)}") from error
    except OSError as error:
        raise UserError(f"{describe(error)}; {way_on(folder)}") from error


def way_on(folder: Path) -> str:
    """What becomes of a run that is stopped from outside."""
    if not (folder / CONFIG).is_file():
        return f"the run stops; {folder} has nothing to go on from"
    found = checkpoints.checkpoints(folder / CHECKPOINTS)
    last = f"its last checkpoint is {found[-1]}" if found else "it has no checkpoint yet"
    if peers.restarts_left() > 0:
        return f"the run stops; {last}; torchrun starts it again"
    return f"the run stops; {last}; go on with: hexa resume {folder}"
