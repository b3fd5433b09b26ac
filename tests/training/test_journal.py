"""Log lines: complete, unique, readable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from hexa.training.journal import METRICS, TENSORBOARD, Journal
from hexa.training.trackers import State, TensorBoard


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_journal_resume_truncation(tmp_path: Path) -> None:
    """Resuming drops later and broken lines, and the epoch that begins where the run resumes."""
    with closing(Journal(tmp_path).open()) as journal:
        for step in (10, 20, 30):
            journal.write(
                "train",
                step,
                loss=float(step),
                **{"loss/std": float("nan")},
            )
        journal.write("epoch", 10)
        journal.write("epoch", 20)
        journal.write("checkpoint", 20)
        assert lines(tmp_path)[0] == {"event": "train", "step": 10, "loss": 10.0, "loss/std": None}
        assert "time" in lines(tmp_path)[-1]  # as soon as it is written
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"event": "train", "step": 15, "los')
    with closing(Journal(tmp_path).open(20)) as journal:
        journal.write("resume", 20)
        journal.write("train", 30, loss=31.0)
    found = [(line["event"], line["step"], line.get("loss")) for line in lines(tmp_path)]
    expected = [
        ("train", 10, 10.0),
        ("train", 20, 20.0),
        ("epoch", 10, None),
        ("checkpoint", 20, None),
        ("resume", 20, None),
        ("train", 30, 31.0),
    ]
    assert found == expected


def test_tensorboard_scalars(tmp_path: Path) -> None:
    """TensorBoard holds the same numbers, once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with closing(Journal(tmp_path).open(0, [TensorBoard(tmp_path / TENSORBOARD)])) as journal:
        for step in (1, 2, 3):
            journal.write("train", step, loss=step / 2)
    with closing(Journal(tmp_path).open(2, [TensorBoard(tmp_path / TENSORBOARD, 2)])) as journal:
        journal.write("train", 3, loss=9.0)
        journal.write("monitor", 3, knn=50.0)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("loss")]
    expected = [(1, 0.5), (2, 1.0), (3, 9.0)]
    assert found == expected
    assert [(e.step, e.value) for e in events.Scalars("monitor/knn")] == [(3, 50.0)]


class Failing:
    """A tracker that fails when it logs, and when it ends."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        raise OSError("full")

    def finish(self, state: State) -> None:
        raise OSError("offline")


def test_failing_tracker(tmp_path: Path) -> None:
    """A failure is a warning; at the end it is only shown, so `interrupted` stays the last line."""
    with closing(Journal(tmp_path).open(0, [Failing()])) as journal:
        journal.write("interrupted", 3)
    assert [line["event"] for line in lines(tmp_path)] == ["interrupted"]
    with closing(Journal(tmp_path).open(3, [Failing()])) as journal:
        journal.write("train", 4, loss=1.0)
        journal.write("train", 5, loss=1.0)
    found = [(line["event"], line["step"]) for line in lines(tmp_path)]
    expected = [
        ("interrupted", 3),
        ("train", 4),
        ("warning", 4),
        ("train", 5),
    ]
    assert found == expected
