"""A detector's training and scoring, killed anywhere, ends in the same figures."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hexa.evaluation import evaluate
from hexa.evaluation.detection import scoring
from tests.evaluation.test_detect import NETWORK, TINY, squares
from tests.torture.harness import Tally, forked

#: What was reported last before the process is killed, and what is reported first when it goes on.
MOMENTS = (
    (("training the detector", 5), ("training the detector", 5)),
    (("statistics of batch-norms", 1), ("statistics of batch-norms", 1)),
    (("detecting", 1), ("detecting", 1)),
    (("detecting", 8), ("detecting", 7)),
)


def test_kill_9_while_a_detector_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally) -> None:
    monkeypatch.setattr(scoring, "_CHUNK", 3)
    data, options = squares(tmp_path), {**TINY, "precise_bn": 3, "out": tmp_path / "found.json"}
    whole = evaluate("detect", NETWORK, data, **options)
    for last, first in MOMENTS:

        def killed(label: str, done: int, total: int, last: tuple[str, int] = last) -> None:
            if (label, done) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        ended = forked(lambda: evaluate("detect", NETWORK, data, progress=killed, **options), seconds=120)
        assert ended.signal == signal.SIGKILL, ended
        went: list[tuple[str, int, int]] = []
        again = evaluate("detect", NETWORK, data, progress=lambda *said, went=went: went.append(said), **options)  # type: ignore[misc]
        same = (again["metrics"], again["details"]) == (whole["metrics"], whole["details"])
        tally.fault("kill -9 while a detector is measured", same and went[0][:2] == first)
        assert same
        assert went[0][:2] == first
