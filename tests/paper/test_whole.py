"""All experiments in one folder: shared runs against a naive count, the budget, order, failures, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hexa import cli
from hexa_paper import drawing, reproduce, storage, whole, whole_plan
from hexa_paper.plan import Job
from hexa_paper.studies import KNN
from tests.paper.conftest import MEASURED, TINY, stored_run

# -- carried out, with made-up runs ----------------------------------------------------------------------------------


Made = list[tuple[str, str, int]]


def failing(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[Job, str], bool], error: BaseException
) -> Any:
    """Let jobs fail by themselves and the folder of their part. Returns what carries them out well."""
    works = whole.run_jobs

    def fails(jobs: Any, folder: Path, *options: Any) -> Iterator[dict[str, Any]]:
        if when(jobs[0], folder.name):
            raise error
        return works(jobs, folder, *options)

    monkeypatch.setattr(whole, "run_jobs", fails)
    return works


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Three small parts, whose jobs (part, arm, seed) are noted and found at once."""
    made: Made = []

    def run_jobs(jobs: Any, out: Path, *_: Any) -> Iterator[dict[str, Any]]:
        for job in jobs:
            made.append((out.name, job.arm.key, job.experiment.seed))
            (out / (job.run or "runs/one")).mkdir(parents=True, exist_ok=True)
            done = job.record | stored_run(job)
            storage.write(storage.job_file(out, job.name), done)
            yield done

    def evaluate(protocol: str, backbone: object, data: str, **_: Any) -> dict[str, Any]:
        return {"protocol": f"{protocol}/made-up", "data": data, "metrics": {"top1": 1.0}}

    monkeypatch.setattr("hexa_paper.costs.benchmark", lambda *_, **__: MEASURED)
    monkeypatch.setattr(whole_plan, "evaluate", evaluate)
    monkeypatch.setattr(whole, "run_jobs", run_jobs)
    monkeypatch.setattr(drawing, "draw", lambda *_: None)
    monkeypatch.setattr(
        whole_plan, "PARTS", (("table1", "moco"), ("table5", "moco"), ("ablation", "dcluster"))
    )
    return made


def carry_out(out: Path, **options: Any) -> Any:
    made = reproduce("all", "digits", out=out, **{"seeds": (0, 1), "epochs": 1} | options)
    return json.loads((made / "result.json").read_text())


def reasons(record: Any) -> dict[tuple[str, str], str]:
    """Why arms have less than was planned, by part and arm."""
    return {
        (part, arm["arm"]): arm["reason"]
        for part, one in record["parts"].items()
        for arm in one["arms"]
    }


def test_stopped_anywhere_the_same_call_goes_on(
    tmp_path: Path, made_up: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One seed for everything before the next, and nothing twice."""
    out = tmp_path / "all"
    works = failing(monkeypatch, lambda *_: len(made_up) == 3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        carry_out(out)
    assert "**Unfinished:**" in (out / "paper.md").read_text()
    monkeypatch.setattr(whole, "run_jobs", works)
    record = carry_out(out)
    assert "**Unfinished:**" not in (out / "paper.md").read_text()
    assert set(reasons(record).values()) == {""}
    assert len(made_up) == len(set(made_up))
    seeds = [seed for _, _, seed in made_up]
    assert seeds == sorted(seeds)
    first = [part for part, _, seed in made_up if seed == 0]
    assert (
        list(dict.fromkeys(first))
        == list(record["parts"])
        == ["table1-moco", "table5-moco", "ablation-dcluster"]
    )
    count = len(made_up)
    carry_out(out)
    assert len(made_up) == count


@pytest.mark.usefixtures("made_up")
def test_what_fails_stops_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "all"
    error = RuntimeError("no room for it\nand more")
    works = failing(
        monkeypatch, lambda job, part: (part, job.arm.scheme) == ("table5-moco", "ii"), error
    )
    found = {key: reason for key, reason in reasons(carry_out(out)).items() if reason}
    assert found == {("table5-moco", "HEXA-MoCo"): "not finished: 0 of 2 runs; no room for it"}
    assert "no room for it" in (out / "paper.md").read_text()
    monkeypatch.setattr(whole, "run_jobs", works)
    carry_out(out)
    assert "no room for it" not in (out / "paper.md").read_text()


def test_the_digits_through_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real runs: one pre-training of each arm, measured for two tables."""
    monkeypatch.setattr(whole_plan, "PARTS", (("learning-curves", "moco"), ("table5", "moco")))
    monkeypatch.setattr("hexa_paper.costs._REPEATS", 1)
    out = tmp_path / "all"
    fields = [f"--{name}={value}" for name, value in TINY.items()]
    command = [
        "reproduce",
        "all",
        "--data",
        "digits",
        "--seeds",
        "0",
        "--epochs",
        "1",
        "--out",
        str(out),
        *fields,
    ]
    assert cli.main([*command, "--plan"]) == 0
    assert "of them new" in capsys.readouterr().out
    assert not (out / "runs").exists()
    assert cli.main(command) == 0
    assert "# The paper beside our runs" in capsys.readouterr().out
    assert len(list((out / "runs").iterdir())) == 2
    record = json.loads((out / "result.json").read_text())
    assert set(reasons(record).values()) == {""}
    for part in record["parts"].values():
        for arm in part["arms"]:
            assert all(
                len(values) == 1
                for result in arm["results"]
                for values in result["scores"].values()
            )
    assert KNN.title in record["parts"]["learning-curves-moco"]["arms"][0]["results"][0]["scores"]
    assert (out / "figures/view-space.png").is_file()
