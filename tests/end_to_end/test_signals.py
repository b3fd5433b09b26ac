"""A training in a process of its own, asked to stop by the signals of schedulers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from hexa.run.run import resume
from hexa.training.journal import METRICS
from tests.end_to_end.endings import RECIPE, STEPS, metric_lines, options


def test_scheduler_signal_save(tmp_path: Path) -> None:
    """A signal of a scheduler saves the run; tests/runtime/test_signals.py has the other signals."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "hexa", "pretrain", RECIPE, "--out", str(folder), *options()]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    journal = folder / METRICS
    while not (journal.exists() and '"step": 5,' in journal.read_text()):
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGUSR1, said
    assert "interrupted by SIGUSR1 at step" in said
    assert f"which is saved; continue with: hexa resume {folder}" in said
    resume(folder)
    assert [line["step"] for line in metric_lines(folder, "train")] == list(range(1, STEPS + 1))
