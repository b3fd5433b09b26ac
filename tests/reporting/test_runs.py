"""Reading run folders: everything that is there, and words for what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.reporting.report import render
from hexa.reporting.runs import flatten, is_number, read_run
from tests.reporting.conftest import MakeRun, append


def test_a_complete_run(make_run: MakeRun) -> None:
    unfinished = read_run(make_run("without results", finished=False))
    assert (unfinished.results, unfinished.problems) == ([], [])
    run = read_run(make_run("mine", epochs=4))
    assert (run.name, run.state) == ("mine", "finished")
    assert run.problems == []
    assert [line["step"] for line in run.train] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert run.epoch == 4.0
    assert run.seconds == pytest.approx(40 * 0.31)
    assert [result["protocol"] for result in run.results] == ["knn/k200-t0.07", "linear/moco"]
    assert run.config["method"]["name"] == "moco"
    assert run.environment["device"] == "Some CPU"


def test_the_last_event_decides_the_state(make_run: MakeRun) -> None:
    folder = make_run(finished=False)
    states = {
        "end": "finished",
        "interrupted": "interrupted",
        "resume": "unfinished",
        "non-finite": "stopped",
    }
    for last, state in states.items():
        append(folder, {"event": last, "step": 1}, {"event": "checkpoint", "step": 1})
        assert read_run(folder).state == state


def test_a_run_knows_how_often_its_training_was_interrupted(make_run: MakeRun) -> None:
    folder = make_run(epochs=4)
    assert read_run(folder).interruptions == 0
    environment = json.loads((folder / "environment.json").read_text())
    # from its beginning, twice in the middle, at its end; of an older version; damaged
    resumed = [{"step": 0}, {"step": 12}, {"step": 30}, {"step": 40}, {}, {"step": "x"}, "x"]
    (folder / "environment.json").write_text(json.dumps({**environment, "resumed": resumed}))
    assert read_run(folder).interruptions == 3
    assert ", in 4 sessions" in render([read_run(folder)])
    append(folder, {"event": "ended", "step": 43})  # of step 40 too, if it went on without logging
    assert read_run(folder).interruptions == 4
    (folder / "environment.json").write_text(json.dumps({**environment, "resumed": "x"}))
    assert read_run(folder).interruptions == 0


def test_broken_lines_are_left_out_and_told(make_run: MakeRun) -> None:
    folder = make_run(epochs=2)
    journal = folder / "metrics.jsonl"
    lines = journal.read_text().splitlines()
    whole = len(read_run(folder).train)
    lines.insert(2, "{broken")
    lines.insert(4, '["a", "list"]')
    lines.append('{"event": "train", "step": 9')
    journal.write_text("\n".join(lines))
    run = read_run(folder)
    assert len(run.train) == whole
    assert run.problems == [f"metrics.jsonl: 3 broken lines left out (3, 5, {len(lines)})"]


def test_repeated_steps_of_a_resumed_run_count_once(make_run: MakeRun) -> None:
    folder = make_run(epochs=2)
    append(folder, {"event": "train", "step": 10, "epoch": 1.0, "loss/std": -7.0})
    run = read_run(folder)
    assert [line["step"] for line in run.train] == [5, 10, 15, 20]
    assert run.train[1]["loss/std"] == -7.0


def test_a_warning_is_kept_once_with_its_count(make_run: MakeRun) -> None:
    folder = make_run()
    for event, step, message in (
        ("warning", 40, "a"),
        ("warning", 60, "a"),
        ("non-finite", 61, "the loss is nan"),
    ):
        append(folder, {"event": event, "step": step, "message": message})
    nan = {"message": "the loss is nan", "step": 61, "count": 1}
    assert read_run(folder).warnings == [{"message": "a", "step": 40, "count": 2}, nan]


def test_one_result_alone_and_entries_without_metrics(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "results.json").write_text('{"protocol": "knn", "metrics": {"top1": 1.0}}')
    assert len(read_run(folder).results) == 1
    (folder / "results.json").write_text('[{"protocol": "knn"}, 3, {"metrics": {"top1": 1.0}}]')
    run = read_run(folder)
    assert len(run.results) == 1
    assert run.problems == ["results.json: 2 entries without metrics left out"]


def test_what_is_no_run_folder_is_refused(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        read_run(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="not a run folder"):
        read_run(tmp_path / "empty")
    folder = make_run()
    for path in list(folder.iterdir()):
        if path.name != "results.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert read_run(folder).state == "unknown"


def test_numbers_and_flattening() -> None:
    assert [is_number(v) for v in (1, 0.5, True, None, "1", float("nan"), float("inf"))] == [
        True,
        True,
    ] + [False] * 5
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2]}
