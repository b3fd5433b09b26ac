"""Faults during a training: the run resumes, and ends bit for bit like an undisturbed one."""

from __future__ import annotations

import random
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from hexa import recipes
from hexa.recipes import experiment as experiments
from hexa.run.run import pretrain, resume
from hexa.runtime import checkpoints
from tests.end_to_end.endings import FIELDS, RECIPE, STEPS, difference, options
from tests.torture.harness import DAMAGES, Ended, Tally
from tests.torture.struck import Strike, fill, kill, kill_a_worker, struck

MONITORED = {"monitor__knn_every": 1, "monitor__k": 20}
#: Images come from worker processes, as large photographs do.
WORKERS = {"training__resident_limit_bytes": 0, "training__num_workers": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without faults."""
    named = {name.replace("__", "."): value for name, value in MONITORED.items()}
    return pretrain(
        experiments.override(recipes.get(RECIPE), FIELDS | named),
        tmp_path_factory.mktemp("whole") / "run",
    )


def go_on(folder: Path, strike: Strike | None = None, **changes: object) -> Ended:
    """Do what a user would: resume a run, or start one that has not written a checkpoint yet."""
    if (folder / "config.yaml").exists():
        return struck("resume", folder, strike=strike)
    return struck(
        "pretrain", RECIPE, "--out", folder, *options(**MONITORED, **changes), strike=strike
    )


def finish(folder: Path, whole: Path) -> str | None:
    """Resume to the end; return the differences to the run `whole`."""
    end = go_on(folder)
    return f"status {end.code}: {end.err[-2000:]}" if end.code else difference(folder, whole)


def test_kill_moments(tmp_path: Path, whole: Path, tally: Tally) -> None:
    """In a checkpoint, at the monitor, which has not been saved, and somewhere. More: benchmarks/stops.py."""
    folder = tmp_path / "run"
    draw = random.Random(0)
    moments = (("end a checkpoint", 2, 4), ("monitor", 1, 3), ("step", 1, 6))
    ends = [go_on(folder, Strike(kill, at, draw.randrange(*calls))) for at, *calls in moments]
    left = finish(folder, whole)
    for end in ends:
        tally.fault(
            "kill -9 while training", left is None and end.code == -signal.SIGKILL, (left, end)
        )


def test_full_disk_checkpoint(tmp_path: Path, whole: Path, tally: Tally) -> None:
    """… in the middle of a checkpoint; other files: tests/run/test_folder.py."""
    folder = tmp_path / "run"
    end = go_on(folder, Strike(partial(fill, 20_000), "save a checkpoint", 3))
    last = end.err.strip().splitlines()[-1]
    told = "/step-000000" in last and "the limit on the size of files" in last
    said = told and last.endswith(f": hexa resume {folder}")
    left = finish(folder, whole)
    tally.fault("a full disk", end.complaint is None and said and left is None, (end, left))


def test_damaged_checkpoint_fallback(tmp_path: Path, whole: Path, tally: Tally) -> None:
    """The one before it is used; or it itself, where the damage is in the gaps of its file."""
    stopped = tmp_path / "stopped"
    go_on(stopped, Strike(kill, "step", STEPS))
    newest = checkpoints.checkpoints(stopped / "checkpoints")[-1].name
    for kind, damage in DAMAGES.items():
        folder = Path(shutil.copytree(stopped, tmp_path / kind))
        path = folder / "checkpoints" / newest
        path.write_bytes(damage(path.read_bytes()))
        resume(folder)
        left = difference(folder, whole)
        tally.fault("damaged checkpoints", left is None, left)


@pytest.mark.slow
def test_dying_and_surviving_workers(tmp_path: Path, tally: Tally) -> None:
    """The second time it is the main process that is killed: its workers must not keep the next one out."""
    whole = tmp_path / "whole"
    folder = tmp_path / "run"
    draw = random.Random(0)
    assert go_on(whole, **WORKERS).code == 0
    ends = [
        go_on(folder, Strike(kill_a_worker, "step", draw.randrange(5, 15)), **WORKERS),
        go_on(folder, Strike(kill, "step", draw.randrange(1, 10))),
    ]
    left = finish(folder, whole)
    said = ends[0].complaint is None and "a worker process that decodes images ended" in ends[0].err
    way = f": hexa resume {folder}" in ends[0].err
    tally.fault("a loader process dies", said and way and left is None, (ends[0], left))
    tally.fault("kill -9 while training", ends[1].code == -signal.SIGKILL, ends[1])
