"""A whole study on the embedded digits: stopped, gone on with, and the same as in one go."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from tests.evaluation.given import plain_images
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


def test_runs_end_once_they_have_reached_an_accuracy(tmp_path: Path) -> None:
    given = {
        "epochs": 2,
        "rates": (0.01, 0.03),
        "until": 30.0,
        "monitor.knn_every": 1,
        "monitor.k": 20,
    }
    out = carry_out(tmp_path / "soon", "table2", **given)
    jobs = [job for path in (out / "jobs").glob("*.json") if (job := storage.read(path))]
    searched = [job["experiment"]["monitor"] for job in jobs if job["phase"] == "search"]
    assert {(one["until"], one["holdout"]) for one in searched} == {
        (None, 0)
    }  # which is not cut short
    found = result(out)
    assert found["until"] == 30
    assert {row["comparison"] for row in found["summary"]} == {"equal epochs"}
    assert all(row["relative_time"] is None for row in found["summary"])
    page = (out / "table.md").read_text()
    assert "Until k-NN of held-out images reaches 30 %, 2 epochs at most" in page
    assert page.count("| 1 of 1 |") == len(found["summary"]) == 2
    for job in [job for job in jobs if job["phase"] == "final"]:
        assert job["reached"]["epochs"] == 1
        journal = [json.loads(line) for line in (out / f"runs/{job['name']}/metrics.jsonl").open()]
        assert journal[-1]["step"] == 9  # 1,212 images are trained on, in steps of 128
        last = {line["event"]: line["seconds"] for line in journal if "seconds" in line}
        assert (
            0 < job["reached"]["seconds"] == last["ended"] < last["monitor"]
        )  # whose own time is not counted


def test_what_was_never_reached_is_said(tmp_path: Path) -> None:
    """And runs that were trained to their end are no part of such a study."""
    out = carry_out(tmp_path / "never", "table2", until=99.99, **{"monitor.knn_every": 1})
    assert (out / "table.md").read_text().count("| 0 of 1 | – | – |") == 2
    assert "reached" not in result(out)["summary"][0]
    shutil.copytree(out / "runs", tmp_path / "whole" / "runs")
    with pytest.raises(UserError, match="is a run with other settings"):
        carry_out(tmp_path / "whole", "table2")


def test_until_needs_labels_to_be_reached(tmp_path: Path) -> None:
    data = plain_images(tmp_path, {"0.png": (8, 8), "1.png": (8, 8)})
    with pytest.raises(UserError, match="--until needs one label per image"):
        hexa_paper.begin("ablation", data, evaluate_on=("digits",), until=60.0)


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
    first, drawn, own = (
        result(out),
        set((out / "figures").iterdir()),
        out / "figures" / "table2-mine.png",
    )
    own.write_text("")
    begin(out, "table2", seeds=(1,)).measured().collect(figures=False)
    assert set((out / "figures").iterdir()) == {
        own
    }  # those of fewer runs are removed, and nothing else
    joined = result(carry_out(out, "table2", seeds=(1,)))
    assert set((out / "figures").iterdir()) == drawn | {own}
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
        (
            {"until": 60.0, "experiment": "learning-curves"},
            "--until: learning-curves compares lengths of training",
        ),
        (
            {"until": 60.0, "monitor.knn_every": 1, "monitor.holdout": 0},
            "--until measures on held-out training images",
        ),
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


def test_costs_that_others_measured_until_the_lock_was_free_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def waited(out: Path) -> Iterator[None]:
        storage.write(
            out / storage.COSTS, {"digits-moco-v2": MEASURED | {"fields": {"batch_size": 32}}}
        )
        yield

    monkeypatch.setattr("hexa_paper.costs.benchmark", None)
    monkeypatch.setattr(storage, "at_work", waited)
    assert costs_of(study("ablation", data="digits").arms, {"batch_size": 32}, tmp_path)


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


def test_what_another_process_works_on_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_PATIENCE_SECONDS", 0.0)
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


@pytest.mark.slow
def test_several_workers_find_what_one_finds(tmp_path: Path) -> None:
    one, two = (
        result(carry_out(tmp_path / str(workers), "table2", workers=workers)) for workers in (1, 2)
    )
    assert [row["scores"] for row in one["summary"]] == [row["scores"] for row in two["summary"]]
    assert {row["arm"] for row in one["summary"]} == {"MoCo-v2", "HEXA-MoCo"}


@pytest.mark.slow
def test_a_failed_run_is_named(tmp_path: Path) -> None:
    out = begun(tmp_path / "study", "table2")
    blocked = out / "runs/i-1ep-lr0.03-seed0"
    blocked.mkdir(parents=True)
    (blocked / "something").write_text("else")
    with pytest.raises(UserError, match=r"run i-1ep-lr0.03-seed0 failed: .*not an empty folder"):
        carry_out(out, "table2", workers=2)


def two_at_work(out: Path) -> tuple[subprocess.Popen[str], list[Path]]:
    """The real command with two workers, once both train; and their journals."""
    work = begin(out, epochs=60).measured()
    command = [sys.executable, "-m", *f"hexa reproduce ablation --data digits --out {out}".split()]
    command += ["--seeds", "0", "--epochs", "60", "--rates", "0.03", "--workers", "2"]
    command += [f"--{path}={value}" for path, value in TINY.items()]
    storage.write(
        out / storage.COSTS, {"digits-moco-v2": MEASURED | {"fields": work.request.plain_fields}}
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    logs = [out / "runs" / f"{key}-60ep-lr0.03-seed0" / "metrics.jsonl" for key in ("i", "ii")]
    while not all(log.exists() and '"train"' in log.read_text() for log in logs):
        assert process.poll() is None
        select.select([], [], [], 0.1)
    return process, logs


@pytest.mark.slow
@pytest.mark.usefixtures("hears_hang_ups")
@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGHUP, signal.SIGHUP]])
def test_a_signal_ends_all_runs_at_once_and_loses_none(tmp_path: Path, numbers: list[int]) -> None:
    """Its runs are in sessions of their own, so only their parent hears of Ctrl-C and of the closed terminal."""
    process, logs = two_at_work(tmp_path / "study")
    for number in numbers:
        process.send_signal(number)
        select.select([], [], [], 0.3)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + numbers[0]
    assert "the same command continues" in said
    for log in logs:
        assert '"event": "interrupted"' in log.read_text()
        assert list((log.parent / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone"
)
def test_runs_save_and_end_when_their_study_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "study"
    process, logs = two_at_work(out)
    process.kill()
    process.communicate()
    for log in logs:
        with locked(
            storage.lock_file(out, log.parent.name), "lives on", patience=60
        ):  # they let go of their runs
            assert '"event": "interrupted"' in log.read_text()
            assert list((log.parent / "checkpoints").iterdir())
    with storage.at_work(out):
        pass
