"""Reading run folders: everything that is there, and words for what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun, append


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
