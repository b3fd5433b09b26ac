"""Trainings that share the cores: one that is killed, or stands still, takes nothing from another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hexa.training.journal import METRICS
from tests.end_to_end.endings import RECIPE, assert_same_end, options
from tests.torture.harness import Tally

#: More threads than the other leaves cores for.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count() or 1)}


def begin(out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hexa", "pretrain", RECIPE, "--out", str(out), *options(), *more]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_training_beside_one_that_is_killed(tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path))  # where they find each other
    assert begin(tmp_path / "alone").wait(300) == 0
    other = begin(tmp_path / "other", "--epochs", "100000")
    beside = begin(tmp_path / "beside")
    try:
        journal = tmp_path / "beside" / METRICS
        while beside.poll() is None and not (journal.exists() and '"step": 9,' in journal.read_text()):
            assert other.poll() is None
        other.send_signal(signal.SIGKILL)
        ended = beside.wait(300) == 0
    finally:
        for process in (other, beside):
            process.kill()
            process.wait()
    tally.fault("kill -9 of a training beside another", ended)
    assert ended
    assert_same_end(tmp_path / "beside", tmp_path / "alone")
