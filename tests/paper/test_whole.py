"""All experiments in one folder: shared runs against a naive count, the budget, order, failures, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hexa import cli
from hexa.config import UserError
from hexa_paper import drawing, plan, reproduce, storage, whole, whole_plan
from hexa_paper.benchmark import SCHEMES
from hexa_paper.plan import Job
from hexa_paper.request import Request, Target
from hexa_paper.schemes import SCHEMES as PUBLISHED
from hexa_paper.studies import KNN, PROBE, Measure, shortened
from hexa_paper.whole import Whole
from tests.paper.conftest import MEASURED, TINY, stored_run

VOC = Target("voc:V", several=True, known_as="VOC07")


def cifar(out: Path, *, voc: bool = True, epochs: int = 1, **changes: Any) -> Whole:
    """With costs of a second a term for a thousand images."""
    targets = Target("cifar10", known_as="CIFAR-10"), *((VOC,) * voc)
    one = Whole(
        Request("cifar10", out=out, targets=targets, num_images=1000, **changes), epochs=epochs
    )
    schemes = {name: (1.0 + len(terms)) / 1000 for name, terms in SCHEMES.items()}
    return replace(one, costs={arm.recipe: schemes for arm in one.arms.values()})


def test_runs_that_studies_share_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("table1", "table2", "table3", "table4", "table5", "ablation")
    monkeypatch.setattr(whole_plan, "PARTS", [(part, "moco") for part in parts])
    one = cifar(tmp_path, seeds=(0, 1), epochs=8)
    by_part = {part: work.final for part, work in one.parts().items()}
    jobs = [job for made in by_part.values() for job in made]
    naive: dict[str, plan.Job] = {}
    for job in jobs:  # by everything that moves a number
        fields = job.experiment.model_dump(mode="json")
        naive.setdefault(
            json.dumps([fields[name] for name in fields if name not in ("training", "monitor")]),
            job,
        )
    lines = one.lines()[1:]
    assert (
        sum(line["of them new"] for line in lines) == len(naive) == len({job.run for job in jobs})
    )
    assert sum(line["runs"] for line in lines) == len(jobs) > 2 * len(naive)
    terms = sum(1 + len(SCHEMES[PUBLISHED[job.arm.scheme].name]) for job in naive.values())
    assert sum(line["training"] for line in lines) == pytest.approx(8 * terms)
    plain = {
        part
        for part, made in by_part.items()
        for job in made
        if "moco-v2+small-std-8ep-seed0" in job.run
    }
    assert plain == {f"{part}-moco" for part in parts}


def test_every_arm_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        whole_plan, "PARTS", (("table1", "moco"), ("table2", "moco"), ("ablation", "moco"))
    )
    one = cifar(tmp_path, epochs=8)
    jobs = one.search.search
    assert len(jobs) == 4 * len(one.arms)
    assert {job.experiment.epochs for job in jobs} == {2}
    assert all(measure.holdout == plan.HOLDOUT for job in jobs for measure in job.measures)
    assert replace(one, epochs=whole_plan.SEARCHED - 1).search.search == []
    rates = dict.fromkeys(one.arms, 0.07)
    found = {
        job.experiment.optimizer.learning_rate
        for part in one.parts(rates).values()
        for job in part.final
    }
    assert found == {0.07}


def test_evaluations_are_no_longer_than_runs() -> None:
    for passes in range(1, 21):
        for share in (1, 10, 100):
            epochs = shortened(Measure("", "semi-supervised", {"percent": share}), passes).options[
                "epochs"
            ]
            assert epochs == max(one for one in range(1, 21) if one * share <= 100 * passes)
        assert shortened(Measure("", "fine-tune"), passes).options["epochs"] == passes
    assert shortened(PROBE, 3) == PROBE


def test_what_needs_voc_is_left_out_with_its_reason(tmp_path: Path) -> None:
    one = cifar(tmp_path, voc=False)
    assert not [part for part in one.parts() if part.startswith(("table2", "table4"))]
    assert one.left_out["table4-moco"] == "no --data-voc"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--tiem", "1h"], "tiem"),
        (["--rates", "0.1"], "--rates applies to a single"),
        (["--hard_examples.mixup.weight", "1"], "no arm of all has that hard example"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    experiment = ["all"] if given[0].startswith("--") else []
    assert (
        cli.main(
            ["reproduce", *experiment, *given, "--data", "digits", "--out", str(tmp_path / "all")]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "all").exists()


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


@pytest.mark.usefixtures("made_up")
def test_learners_from_labels_stand_in_table_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scored from random weights, for as many passes over the unlabelled images as runs have, in their own rows."""
    asked: list[dict[str, Any]] = []

    def evaluate(protocol: str, backbone: object, data: str, **options: Any) -> dict[str, Any]:
        asked.append(options)
        score = 10.0 * options.get("percent", 0) + len(options.get("learner", ""))
        return {
            "protocol": f"{protocol}/made-up",
            "data": data,
            "metrics": {"top1": score, "top5": 99.0},
        }

    monkeypatch.setattr(whole_plan, "PARTS", (("table3", "moco"),))
    monkeypatch.setattr(whole_plan, "evaluate", evaluate)
    record = carry_out(tmp_path / "all", epochs=3)
    steps = {options["learner"]: options["steps"] for options in asked if options.get("learner")}
    ratios = {"pseudo-label": 1, "vat": 1, "s4l": 1, "uda": 7, "fixmatch": 7}
    assert steps == {
        learner: 3 * record["images"] // (64 * ratio) for learner, ratio in ratios.items()
    }
    arms = {arm["arm"]: arm for arm in record["parts"]["table3-moco"]["arms"]}
    assert arms["VAT"]["row"] == ["VAT", None]
    assert arms["VAT"]["results"][0]["scores"]["1 % of the labels top1"] == [13.0, 13.0]
    assert arms["VAT"]["results"][0]["scores"]["10 % of the labels top1"] == [103.0, 103.0]
    assert "1 % of the labels top1" not in arms["FixMatch"]["results"][0]["scores"]
    page = (tmp_path / "all" / "paper.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| FixMatch |"))
    assert "| FixMatch, 2 seeds | – | – | 108.0 ± 0.0 |" in line


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


def test_further_seeds_join_a_folder(
    tmp_path: Path, made_up: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all"
    monkeypatch.setattr(whole_plan, "PARTS", (("table1", "moco"), ("table5", "moco")))
    first = carry_out(out, epochs=4)
    searched = [arm for part, arm, _ in made_up if part == "search"]
    assert len(searched) == 4 * len(set(searched)) > 0
    assert sorted(one["arm"] for one in first["search"]) == sorted(searched)
    assert all(one["score"] > 0 for one in first["search"])
    assert "search" not in json.loads((out / "table1-moco" / "result.json").read_text())
    count = len(made_up)
    again = carry_out(out, epochs=4, seeds=(2,))
    assert (first["seeds"], again["seeds"], again["epochs"]) == ([0, 1], [0, 1, 2], first["epochs"])
    assert {seed for _, _, seed in made_up[count:]} == {2}
    with pytest.raises(UserError, match="epochs 4 there, 1 here"):
        carry_out(out, epochs=1)


@pytest.mark.usefixtures("made_up")
def test_what_fails_stops_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = tmp_path / "all", RuntimeError("no room for it\nand more")
    works = failing(
        monkeypatch, lambda job, part: (part, job.arm.scheme) == ("table5-moco", "ii"), error
    )
    found = {key: reason for key, reason in reasons(carry_out(out)).items() if reason}
    assert found == {("table5-moco", "HEXA-MoCo"): "not finished: 0 of 2 runs; no room for it"}
    assert "no room for it" in (out / "paper.md").read_text()
    monkeypatch.setattr(whole, "run_jobs", works)
    carry_out(out)
    assert "no room for it" not in (out / "paper.md").read_text()


@pytest.mark.usefixtures("made_up")
def test_an_arm_without_a_searched_rate_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_plan, "PARTS", (("table1", "moco"),))
    failing(
        monkeypatch,
        lambda job, part: part == "search" and "std+adv-" in job.arm.key,
        UserError("not searched"),
    )
    found = reasons(carry_out(tmp_path / "all", epochs=4))
    assert (
        found["table1-moco", "HEXA-MoCo"]
        == "not finished: 0 of 2 runs; the search for its learning rate failed"
    )
    assert found["table1-moco", "MoCo-v2"] == ""


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
