"""Processes that die beside the main one: workers that decode images, one of two that train, and disks that fill up."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.together import run_together
from tests.end_to_end.endings import RECIPE, STEPS, difference, options
from tests.end_to_end.test_torchrun import Torchrun, kill, running, undisturbed
from tests.torture.harness import Tally, hexa
from tests.torture.struck import Strike, kill_a_worker, struck
from tests.torture.struck import kill as kill_me

#: Images come from worker processes, as large photographs do.
WORKERS = {"training__resident_limit_bytes": 0, "training__num_workers": 2}
STEP = "hexa.training.trainer:Trainer._train_step"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]


def test_workers_that_die_and_workers_that_live_on(tmp_path: Path, tally: Tally) -> None:
    """The second time it is the main process that is killed: its workers must not keep the next one out."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    words = ("pretrain", RECIPE, *options(**WORKERS), "--out")
    assert struck(*words, whole).code == 0
    draw = random.Random(0)
    ends = [
        struck(*words, folder, strike=Strike(kill_a_worker, STEP, draw.randrange(5, 15))),
        struck("resume", folder, strike=Strike(kill_me, STEP, draw.randrange(1, 10))),
        struck("resume", folder),
    ]
    left = difference(folder, whole)
    way = f"go on with: hexa resume {folder}"
    said = (
        ends[0].complaint is None and "a worker process that decodes images ended" in ends[0].err and way in ends[0].err
    )
    tally.fault("a loader process dies", said and left is None)
    tally.fault("kill -9 while training", ends[1].code == -signal.SIGKILL and left is None)
    assert said, ends[0]
    assert [end.code for end in ends[1:]] == [-signal.SIGKILL, 0], ends
    assert left is None


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_two_processes_dies(tmp_path: Path, rank: int, tally: Tally) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    run_together(2, undisturbed, str(whole))
    with running(Torchrun.pretrain(folder)) as run:
        run.until(random.Random(rank).randrange(5, STEPS - 5))
        name = kill(run, rank)
        code, said = run.finished()
    lines = [line for line in said.splitlines() if line.startswith("hexa: error")]
    told = code != 0 and len(lines) == 1 and name in lines[0] and lines[0].endswith(f"hexa resume {folder}")
    with running(Torchrun.resume(folder)) as run:
        again, said_again = run.finished()
    left = difference(folder, whole) if again == 0 else said_again
    tally.fault("one of two training processes dies", told and left is None)
    assert told, said
    assert left is None


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own that takes so much; skips where none may be mounted."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("looking", [False, True])
def test_a_disk_that_is_really_full(tmp_path: Path, looking: bool, tally: Tally) -> None:
    """… once room is made, the run goes on. looking: with everything beside that is only for looking."""
    more = {"training__tensorboard": looking, "training__report": looking, "monitor__knn_every": int(looking)}
    whole = tmp_path / "whole"
    words = ("pretrain", RECIPE, *options(**more), "--out")
    assert hexa(*words, whole).code == 0
    size = sum(path.stat().st_size for path in (whole / "checkpoints").iterdir()) // 2
    with small_disk(tmp_path / "disk", 2) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2 * 2**20 - 5 * size // 2))
        folder = disk / "run"
        end = hexa(*words, folder)
        said = end.complaint is None and "the disk is full; make room" in end.err and f"hexa resume {folder}" in end.err
        ballast.unlink()
        again = hexa("resume", folder)
        left = difference(folder, whole) if again.code == 0 else again.err
    tally.fault("a full disk", said and left is None)
    assert said, end
    assert left is None
