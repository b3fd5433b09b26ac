"""Reading run folders: everything that is there, and words for what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.reporting.runs import read_run
from tests.reporting.conftest import MakeRun, append


def test_run_state_by_last_event(make_run: MakeRun) -> None:
    """The last event decides the state."""
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


def test_broken_journal_lines(make_run: MakeRun) -> None:
    """Broken lines are left out and reported."""
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


def test_invalid_run_folder(tmp_path: Path, make_run: MakeRun) -> None:
    """A folder that is not a run is refused."""
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
