"""A training in a process of its own, asked to stop by the signals of schedulers."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

from hexa.run.run import resume
from tests.end_to_end.endings import RECIPE, STEPS, metric_lines, options
from tests.torture.struck import Strike, send, struck


def test_scheduler_signal_save(tmp_path: Path) -> None:
    """A signal of a scheduler saves the run; tests/runtime/test_signals.py has the other signals."""
    folder = tmp_path / "run"
    strike = Strike(partial(send, signal.SIGUSR1), "step", 6)
    end = struck("pretrain", RECIPE, "--out", folder, *options(), strike=strike)
    assert end.code == 128 + signal.SIGUSR1, end
    said = f"interrupted by SIGUSR1 at step 6, which is saved; continue with: hexa resume {folder}"
    assert said in end.err
    resume(folder)
    assert [line["step"] for line in metric_lines(folder, "train")] == list(range(1, STEPS + 1))
