"""A whole study on the embedded digits: stopped, gone on with, and the same as in one go."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import hexa_paper
from hexa import cli, recipes
from hexa.cli import fields
from hexa.config import UserError
from hexa.recipes.experiment import override
from hexa.run.run import pretrain
from hexa.runtime.lock import locked
from hexa_paper import plan, reproduce, running, storage, work
from hexa_paper.benchmark import SCHEMES
from hexa_paper.costs import costs_of, origin_of
from hexa_paper.schemes import SCHEMES as SCHEMES_OF
from hexa_paper.studies import study
from hexa_paper.work import Work
from tests.paper import conftest
from tests.paper.conftest import MEASURED, costs_for, jobs_of, request_for

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


def first_jobs() -> list[plan.Job]:
    """Those of table 2 in its short version."""
    request = request_for(seeds=(0,), epochs=1, rates=(0.03,), fields=TINY)
    chosen = study("table2", data="digits")
    return jobs_of(chosen, request, costs_for(chosen.arms))


def result(out: Path) -> dict[str, Any]:
    return json.loads((out / storage.RESULT).read_text())


def test_stopped_anywhere_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = running.evaluate, []

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


def test_runs_trained_elsewhere_are_evaluated_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the plan of a full scale has it: runs lie in the folder before the study is begun."""
    for job in first_jobs():
        pretrain(job.experiment, tmp_path / "runs" / job.name)
    monkeypatch.setattr(running, "pretrain", None)
    assert {row["arm"] for row in result(carry_out(tmp_path, "table2"))["summary"]} == {
        "MoCo-v2",
        "HEXA-MoCo",
    }


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


def test_a_plan_gives_way_to_another(tmp_path: Path) -> None:
    out = begun(tmp_path / "study")
    begin(out, epochs=2).measured()
    assert storage.read(out / storage.STUDY)["epochs"] == 2
    wider = begin(out, epochs=2, fields=TINY | {"network.widths": "[8, 16]"})
    with storage.at_work(out), pytest.raises(UserError, match="already; wait"):
        wider.measured()
    wider.measured()
    spelled = begin(out, epochs=2, fields=TINY | {"network.widths": [8, 16]})
    assert spelled.claim == wider.claim == storage.read(out / storage.STUDY)


def test_further_seeds_join(tmp_path: Path) -> None:
    out = carry_out(tmp_path / "study", "table2")
    first = result(out)
    joined = result(carry_out(out, "table2", seeds=(1,)))
    assert (first["seeds"], joined["seeds"]) == ([0], [0, 1])
    assert [row["seeds"] for row in joined["summary"]] == [[0, 1]] * len(first["summary"])
    assert [run for run in joined["runs"] if run["seed"] == 0] == first["runs"]
    with pytest.raises(UserError, match="epochs 1 there, 2 here"):
        carry_out(out, "table2", epochs=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be"),
        ({"seeds": (1, 1)}, "different numbers"),
        ({"rates": (0.0,)}, "above 0"),
        ({"evaluate_on": ("folder:nowhere",)}, "nowhere"),
        ({"optimizer.learning_rate": 1}, "--rates"),
        ({"method.tau": 1}, "method.tau: unknown field"),
    ],
)
def test_mistakes_are_told_before_any_work(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        carry_out(tmp_path / "study", **changes)
    assert not (tmp_path / "study").exists()


def test_published_settings_are_planned_without_images_but_not_run_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "full"
    command = (
        f"reproduce ablation --data folder:{tmp_path}/imagenet --scale full --out {out}".split()
    )
    assert cli.main([*command, "--seeds", "0", "--plan"]) == 0
    said = capsys.readouterr().out
    scheme = "ablate-moco+adversarial+cutmix+cutmix-adversarial"
    line = next(line for line in said.splitlines() if f"-m hexa pretrain {scheme} " in line)
    given = fields.split(line.split(" pretrain ")[1].split(), ["--out"])[1]
    own = {"data": f"folder:{tmp_path}/imagenet"}
    made, written = (
        override(recipes.get(scheme), {name: value.strip("'") for name, value in one.items()})
        for one in (given, own)
    )
    assert made.essence({"training", "monitor"}) == written.essence({"training", "monitor"})
    assert "1.0e+08" in said  # 20 epochs of 1,281,167 images and four terms
    assert not out.exists()
    monkeypatch.setattr(work.torch.cuda, "is_available", lambda: False)
    assert cli.main(command) == 2
    assert "need GPUs" in capsys.readouterr().err


def test_the_costs_are_measured_once_for_the_same_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(
        "hexa_paper.costs.benchmark", lambda *given, **_: calls.append(given) or MEASURED
    )
    arms = study("table1", method="dcluster").arms
    for given, measured in (
        ({}, 2),
        ({}, 2),
        ({"batch_size": 32}, 4),
    ):  # two recipes, of two and of six crops
        found = costs_of(arms, given, tmp_path)
        assert len(calls) == measured
    assert found == {
        arm.recipe: dict.fromkeys(SCHEMES, pytest.approx(1 / 1000 + 1 / 1e4)) for arm in arms
    }
    said = f"of 2024-05-06 07:08 on a fast one, 3 threads, kept in {tmp_path / storage.COSTS}; to measure anew, remove"
    assert said in origin_of(tmp_path)


def test_a_scheme_that_was_not_measured_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object, schemes: set[str], **__: object) -> dict[str, Any]:
        return MEASURED | {"schemes": {name: {"images_per_second": 1000.0} for name in schemes}}

    monkeypatch.setattr("hexa_paper.costs.benchmark", measure)
    for name in ("table2", "ablation"):
        arms = study(name, data="digits").arms
        assert {SCHEMES_OF[arm.scheme].name for arm in arms} <= costs_of(arms, {}, tmp_path)[
            "digits-moco-v2"
        ].keys()


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
    run, said = (
        storage.lock_file(begun(tmp_path, "table2"), "i-1ep-lr0.03-seed0"),
        f"process {os.getpid()} on .* ",
    )
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


def test_a_run_that_another_process_finished_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = first_jobs()[0]
    storage.write(storage.job_file(tmp_path, job.name), job.record | {"results": ["found"]})
    monkeypatch.setattr(running, "pretrain", None)
    assert running.carry_out(job.record, tmp_path)["results"] == ["found"]
