"""Faults while a run trains: it goes on, and ends bit for bit where one ended that nothing happened to."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from hexa import experiment as experiments
from hexa import recipes
from hexa.runtime import checkpoints
from hexa.session import run as runs
from hexa.session.run import pretrain, resume
from hexa.weights.pretrained import load_backbone
from tests.end_to_end.endings import FIELDS, RECIPE, STEPS, difference, options
from tests.torture.harness import Ended, Tally, damaged
from tests.torture.struck import Started, Strike, ask, counting, fill, kill, struck

MONITORED = {"monitor__knn_every": 1, "monitor__k": 20}
WRITES = "torch.serialization:_open_zipfile_writer_buffer.__exit__"
"""Called when a checkpoint is in its temporary file but for its end."""
MONITOR = "hexa.session.knn_monitor:KnnMonitor.__call__"


def fields(**changes: object) -> experiments.Experiment:
    named = {name.replace("__", "."): value for name, value in {**MONITORED, **changes}.items()}
    return experiments.override(recipes.get(RECIPE), FIELDS | named)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happens to."""
    return pretrain(fields(), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many functions a run calls while it trains."""
    found: list[int] = []
    train = runs._Session._train

    def counted(*arguments: object) -> None:
        nonlocal found
        with counting() as found:
            train(*arguments)  # type: ignore[arg-type]

    runs._Session._train = counted  # type: ignore[assignment]
    try:
        pretrain(fields(), tmp_path_factory.mktemp("counted") / "run")
    finally:
        runs._Session._train = train
    return found[0]


def go_on(folder: Path, strike: Strike | None = None) -> Ended:
    """What a user does next: resume a run, or begin one that has not got so far."""
    begun = (folder / "config.yaml").exists()
    words = ("resume", folder) if begun else ("pretrain", RECIPE, "--out", folder, *options(**MONITORED))
    return struck(*words, strike=strike)


def finish(folder: Path, whole: Path) -> str | None:
    """Go on to the end; in what it is another than that of the run `whole`."""
    end = go_on(folder)
    return f"status {end.code}: {end.err[-2000:]}" if end.code else difference(folder, whole)


def test_killed_where_it_hurts(tmp_path: Path, whole: Path, tally: Tally) -> None:
    """In the middle of a checkpoint, at the monitor, which has not been saved, and somewhere."""
    draw = random.Random(0)
    strikes = (
        Strike(kill, WRITES, draw.randrange(2, 4)),
        Strike(kill, MONITOR, draw.randrange(1, 3)),
        Strike(kill, "hexa.training.trainer:Trainer._train_step", draw.randrange(1, 6)),
    )
    folder = tmp_path / "run"
    ends = [go_on(folder, strike) for strike in strikes]
    left = finish(folder, whole)
    for end in ends:
        tally.fault("kill -9 while training", left is None and end.code == -signal.SIGKILL)
    assert [end.code for end in ends] == 3 * [-signal.SIGKILL], ends
    assert left is None


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path, whole: Path, calls: int, tally: Tally) -> None:
    """… of several runs, each up to four times."""
    draw, killed, number = random.Random(1), 0, 0
    while killed < 20:
        folder, number, ends = tmp_path / str(number), number + 1, list[Ended]()
        while len(ends) < 4 and (not ends or ends[-1].code):
            share = 1.0 if not ends else 1 - _step(folder) / STEPS
            ends.append(go_on(folder, Strike(kill, "", draw.randrange(1, max(2, round(share * calls))))))
        kills = sum(end.code == -signal.SIGKILL for end in ends)
        killed += kills
        left = finish(folder, whole)
        for _ in range(kills):
            tally.fault("kill -9 while training", left is None)
        assert {end.code for end in ends} <= {0, -signal.SIGKILL}, ends
        assert left is None


def _step(folder: Path) -> int:
    found = checkpoints.checkpoints(folder / "checkpoints")
    return checkpoints.step_of(found[-1]) if found else 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_asked_to_stop_at_a_random_moment(tmp_path: Path, whole: Path, calls: int, number: int, tally: Tally) -> None:
    folder = tmp_path / "run"
    end = go_on(folder, Strike(ask, "", random.Random(number).randrange(1, calls)))
    left = finish(folder, whole)
    # before and after the training proper SIGTERM is what it always is
    said = end.code in (0, -signal.SIGTERM) or (end.code == 143 and f"go on with: hexa resume {folder}" in end.err)
    tally.fault("SIGTERM", left is None and said and "Traceback" not in end.err)
    assert left is None
    assert said, end
    assert "Traceback" not in end.err


#: What is being written when the disk is full: (name, the moment, what a file may be large then).
FULL = {
    "checkpoint": ("hexa.runtime.checkpoints:save", 3, 20_000),
    "metrics.jsonl": ("hexa.training.trainer:Trainer._log", 10, 1),
    "config.yaml": ("hexa.experiment:dump", 1, 1),
    "environment.json": ("hexa.session.run:write_environment", 1, 1),
    "backbone.safetensors": ("hexa.session.run:_Session._finish", 1, 1),
}


@pytest.mark.parametrize(
    "name", ["checkpoint", *(pytest.param(name, marks=pytest.mark.slow) for name in list(FULL)[1:])]
)
def test_a_full_disk(tmp_path: Path, whole: Path, name: str, tally: Tally) -> None:
    at, call, most = FULL[name]
    folder = tmp_path / "run"
    end = go_on(folder, Strike(partial(fill, most), at, call))
    last = end.err.strip().splitlines()[-1]
    begun = (folder / "config.yaml").exists()
    way = f"go on with: hexa resume {folder}" if begun else f"{folder} has nothing to continue from"
    named = f"/{'step-000000' if name == 'checkpoint' else name}" in last
    said = end.complaint is None and named and "the limit on the size of files" in last and last.endswith(way)
    left = finish(folder, whole)
    tally.fault("a full disk", said and left is None)
    assert said, end
    assert left is None


@pytest.mark.slow
def test_a_full_disk_when_a_result_is_stored(tmp_path: Path, whole: Path, tally: Tally) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    words = ("evaluate", "knn", folder, "--data", "digits", "--device", "cpu")
    stored = [struck(*words), struck(*words, strike=Strike(fill, "hexa.evaluation.results:append")), struck(*words)]
    results = json.loads((folder / "results.json").read_text())
    said = stored[1].complaint is None and "results.json" in stored[1].err
    tally.fault("a full disk", said and len(results) == 2)
    assert said, stored[1]
    assert [end.code for end in stored] == [0, 2, 0], stored
    assert [result["metrics"] for result in results] == 2 * [results[0]["metrics"]]


@pytest.mark.parametrize("many", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_damaged_checkpoints(tmp_path: Path, whole: Path, many: int, tally: Tally) -> None:
    """The one before it is used; or it itself, where the damage is in the gaps of its file."""
    stopped = tmp_path / "stopped"
    go_on(stopped, Strike(kill, "hexa.training.trainer:Trainer._train_step", STEPS))
    newest = checkpoints.checkpoints(stopped / "checkpoints")[-1].name
    draw = random.Random(many)
    for number in range(many):
        folder = tmp_path / str(number)
        shutil.copytree(stopped, folder)
        path = folder / "checkpoints" / newest
        path.write_bytes(damaged(path.read_bytes(), draw))
        resume(folder)
        left = difference(folder, whole)
        tally.fault("damaged checkpoints", left is None)
        assert left is None


#: What the run is about to do when its folder is removed.
BEFORE = {
    "summing up a checkpoint": "hexa.runtime.checkpoints:checksum",
    "opening a checkpoint": "torch.serialization:_open_zipfile_writer_buffer.__init__",
    "renaming a checkpoint": "os:replace",
    "keeping the best weights": "hexa.session.run:_Session._backbone",
    "writing down a step": "hexa.training.journal:Journal._append",
}


@pytest.mark.parametrize(
    "moment", [next(iter(BEFORE)), *(pytest.param(name, marks=pytest.mark.slow) for name in list(BEFORE)[1:])]
)
def test_a_run_folder_that_is_removed_where_it_hurts(tmp_path: Path, moment: str, tally: Tally) -> None:
    """… is not made again, neither for a checkpoint nor for the weights that were best so far."""
    folder = tmp_path / "run"
    strike = Strike(partial(shutil.rmtree, folder, ignore_errors=True), BEFORE[moment], 5 if "renam" in moment else 1)
    end = struck("pretrain", RECIPE, "--out", folder, *options(monitor__keep_best="knn", **MONITORED), strike=strike)
    survived = end.complaint is None and not folder.exists()
    tally.fault("a run folder that is removed", survived)
    assert survived, end


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_a_run_folder_that_is_removed(tmp_path: Path, calls: int, number: int, tally: Tally) -> None:
    folder = tmp_path / "run"
    call = random.Random(10 + number).randrange(calls // 50, calls // 2)
    end = go_on(folder, Strike(partial(shutil.rmtree, folder, ignore_errors=True), "", call))
    survived = end.complaint is None and not folder.exists()
    tally.fault("a run folder that is removed", survived)
    assert survived, end


@pytest.mark.slow
def test_a_clock_that_goes_back(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally) -> None:
    """The clock on the wall, that is; durations are measured by another, which never does."""
    now = time.time()
    backwards = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: now - 3600 * next(backwards))
    monkeypatch.setattr("hexa.training.journal.now", lambda: f"20{90 - next(backwards) % 80}-01-01T00:00:00+00:00")
    folder = tmp_path / "run"
    go_on(folder, Strike(kill, "hexa.training.trainer:Trainer._train_step", 10))
    resume(folder)
    left = difference(folder, whole)
    tally.fault("a clock that goes back", left is None)
    assert left is None


def test_two_trainings_into_one_folder(tmp_path: Path, tally: Tally) -> None:
    """… of which one is told so, before anything of the other is touched."""
    folder = tmp_path / "run"
    words = ("pretrain", RECIPE, "--out", folder, *options(epochs=1))
    both = [Started(*words, "--seed", seed) for seed in (1, 2)]
    ends = [one.ended() for one in both]
    first = next((seed for seed, end in zip((1, 2), ends, strict=True) if not end.code), None)
    others = [end for end in ends if end.code]
    same = first is not None and [experiments.load(folder / "config.yaml").seed, _seed(folder)] == [first, first]
    told = len(others) == 1 and others[0].complaint is None
    tally.fault("two trainings into one folder", same and told)
    assert told, ends
    assert same
    assert "already; wait" in others[0].err or "holds a run" in others[0].err


def _seed(folder: Path) -> int:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines].count("start") == 1
    return int(load_backbone(folder).info["seed"])
