"""Real processes, asked to stop, killed with -9 at random steps, and resumed, end where an unharmed one does."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from hexa.runtime import checkpoints
from hexa.training.journal import METRICS
from tests.end_to_end.endings import RECIPE, assert_same_end, options


def hexa(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "hexa", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pretrain(out: Path) -> subprocess.Popen[str]:
    return hexa("pretrain", RECIPE, "--out", str(out), *options())


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=300)
    return process.returncode, said.replace("\n", "")


def strike(process: subprocess.Popen[str], folder: Path, step: int, number: signal.Signals) -> None:
    """Send a signal once the journal shows a step; the process goes on meanwhile, so it is hit somewhere after."""
    journal = folder / METRICS
    while process.poll() is None:
        if journal.exists() and f'"step": {step},' in journal.read_text():
            process.send_signal(number)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)


def test_asked_to_stop_and_killed_at_random_steps_and_resumed(tmp_path: Path) -> None:
    """… the last time with the newest checkpoint cut short as well, which is passed over, and said."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    unharmed, process = pretrain(whole), pretrain(folder)
    strike(process, folder, 2, signal.SIGTERM)
    code, said = finished(process)
    assert code == 143, said
    assert f"hexa resume {folder}" in said
    assert "Traceback" not in said
    first, second = sorted(random.Random(0).sample(range(9, 27), 2))
    process = hexa("resume", str(folder))
    strike(process, folder, first, signal.SIGKILL)
    code, said = finished(process)
    assert code == -signal.SIGKILL, said
    process = hexa("resume", str(folder))
    strike(process, folder, second, signal.SIGKILL)
    code, said = finished(process)
    assert code == -signal.SIGKILL, said
    kept = checkpoints.checkpoints(folder / "checkpoints")
    assert len(kept) == 2
    kept[-1].write_bytes(kept[-1].read_bytes()[:-100])
    code, said = finished(hexa("resume", str(folder)))
    assert code == 0, said
    assert kept[-1].name in said
    code, said = finished(unharmed)
    assert code == 0, said
    assert_same_end(folder, whole)
