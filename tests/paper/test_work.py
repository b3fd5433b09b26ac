"""A whole study on the embedded digits: stopped, gone on with, and the same as in one go."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import hexa_paper
from hexa.config import UserError
from hexa.runtime.lock import locked
from hexa_paper import reproduce, running, storage, work
from hexa_paper.studies import study
from hexa_paper.work import Work
from tests.paper import conftest
from tests.paper.conftest import costs_for

TINY = conftest.TINY | {"method.queue_size": 256}


@pytest.fixture(autouse=True)
def _known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "costs_of", costs_for)


def carry_out(out: Path, experiment: str = "ablation", **changes: Any) -> Path:
    return reproduce(
        experiment,
        "digits",
        out=out,
        **(TINY | {"seeds": (0,), "epochs": 1, "rates": (0.03,)} | changes),
    )


def begin(out: Path, experiment: str = "ablation", **changes: Any) -> Work:
    given: dict[str, Any] = {"seeds": (0,), "epochs": 1, "rates": (0.03,), "fields": TINY} | changes
    return hexa_paper.begin(experiment, "digits", out=out, **given)


def begun(out: Path, experiment: str = "ablation") -> Path:
    """The folder of a study that was planned."""
    begin(out, experiment).measured()
    return out


def result(out: Path) -> dict[str, Any]:
    return json.loads((out / storage.RESULT).read_text())


def test_stopped_anywhere_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = running.evaluate
    calls = []

    def stopped_at_fifth(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == 5:  # in the third run, between its two evaluations
            raise KeyboardInterrupt
        return evaluate(*given, **options)

    out = tmp_path / "study"
    monkeypatch.setattr(running, "evaluate", stopped_at_fifth)
    with pytest.raises(KeyboardInterrupt):
        carry_out(out)
    stored = {path.name: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    assert len(stored) == 2
    partial = result(out)
    assert {row["arm"] for row in partial["summary"]} == {"Std", "Std+Adv"}
    assert partial["notes"][0] == "Unfinished: 2 of 6 runs are done."
    trained = (out / "runs/iii-1ep-lr0.03-seed0/backbone.safetensors").stat().st_mtime_ns

    assert carry_out(out) == out
    assert {name: (out / "jobs" / name).stat().st_mtime_ns for name in stored} == stored
    assert (out / "runs/iii-1ep-lr0.03-seed0/backbone.safetensors").stat().st_mtime_ns == trained
    assert len(calls) == 2 * 6 + 1  # the interrupted evaluation is the only one made twice
    whole = result(out)
    names = [arm.name for arm in study("ablation", data="digits").arms]
    assert [row["arm"] for row in whole["summary"] if row["comparison"] == "equal epochs"] == names
    for name in (
        "table.md",
        "table.csv",
        "figures/ablation-k-nn-top-1.png",
        "figures/ablation-k-nn-top-1.svg",
    ):
        assert (out / name).stat().st_size > 0
    for run in whole["runs"]:
        of_run = json.loads((out / "runs" / run["name"] / "results.json").read_text())
        assert run["results"][0]["metrics"] in [entry["metrics"] for entry in of_run]

    carry_out(out)  # complete: nothing is run again
    assert len(calls) == 13


def test_another_study_is_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "study"
    storage.write(out / storage.STUDY, {"experiment": "ablation", "method": "dcluster"})
    storage.write(storage.job_file(out, "i-1ep"), {"phase": "final", "seed": 0})
    with pytest.raises(UserError, match=r"holds another study \(method dcluster there, moco here"):
        carry_out(out)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: is a file"):
        begun(tmp_path / "file")
    # what is not named is not set
    assert storage.check(
        out, {"experiment": "ablation", "method": "dcluster", "epochs": None, "fields": {}}
    )
    other = tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    with pytest.raises(UserError, match="something other than a study"):
        carry_out(other)
    assert not (other / storage.STUDY).exists()


def test_further_seeds_join(tmp_path: Path) -> None:
    out = carry_out(tmp_path / "study", "table2")
    first = result(out)
    joined = result(carry_out(out, "table2", seeds=(1,)))
    assert (first["seeds"], joined["seeds"]) == ([0], [0, 1])
    assert [row["seeds"] for row in joined["summary"]] == [[0, 1]] * len(first["summary"])
    assert [run for run in joined["runs"] if run["seed"] == 0] == first["runs"]
    with pytest.raises(UserError, match="epochs 1 there, 2 here"):
        carry_out(out, "table2", epochs=2)


def test_final_runs_that_diverge_do_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = carry_out(
        tmp_path / "study", "table2", rates=(1e30,), **{"optimizer.name": "sgd"}
    )  # Muon keeps norms
    found = result(out)
    assert {row["arm"] for row in found["summary"]} == {"MoCo-v2", "HEXA-MoCo"}
    assert all(
        (row["seeds"], row["diverged"], row["scores"]) == ([], [0], {}) for row in found["summary"]
    )
    assert (
        "1 of 1 seed diverged (0) at rate 1e+30; --rates gives lower ones"
        in (out / "table.md").read_text()
    )
    assert "diverged, step" in capsys.readouterr().err


def test_what_another_process_works_on_is_left_to_it(tmp_path: Path) -> None:
    run = storage.lock_file(begun(tmp_path, "table2"), "i-1ep-lr0.03-seed0")
    said = f"process {os.getpid()} on .* "
    with (
        locked(run, ""),
        pytest.raises(UserError, match=rf"{said}trains .*i-1ep-lr0.03-seed0 still; wait"),
    ):
        carry_out(tmp_path, "table2")
    with (
        storage.at_work(tmp_path),
        pytest.raises(UserError, match=f"{said}works on {tmp_path} already"),
    ):
        carry_out(tmp_path, "table2")
    assert not (tmp_path / "runs").exists()
