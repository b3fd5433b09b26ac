"""Facts, commands, differences and evaluations of runs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hexa import recipes
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.reporting import comparison
from hexa.reporting.runs import Run, read_run
from tests.reporting.conftest import MakeRun


def run_of(experiment: Experiment, tmp_path: Path) -> Run:
    folder = tmp_path / "stored run"
    folder.mkdir()
    experiments.dump(experiment, folder / "config.yaml")
    return read_run(folder)


def options(command: str) -> dict[str, str]:
    words = shlex.split(command.replace("\\\n", " "))
    return {
        name.removeprefix("--"): value for name, value in zip(words[3::2], words[4::2], strict=True)
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": "3"},
        {
            "data": "folder:my photos",
            "epochs": "7",
            "batch_size": "64",
            "network.widths": "[8, 16]",
        },
        {"hard_examples.adversarial": "none"},
        {"hard_examples.cutmix.weight": "0.5"},
        {"hard_examples.mix.kind": "cutmix"},
        {
            "hard_examples.cutmix.kind": "cutmix",
            "hard_examples.late.kind": "cutmix",
            "hard_examples.late.source": "cutmix",
        },
    ],
)
def test_the_command_gives_the_experiment_again(changes: dict[str, Any], tmp_path: Path) -> None:
    experiment = override(recipes.get("digits-hexa-moco"), changes)
    command = comparison.command(run_of(experiment, tmp_path))
    assert command.startswith("hexa pretrain digits-hexa-moco")
    assert override(recipes.get("digits-hexa-moco"), options(command)) == experiment
    assert len(options(command)) <= len(changes)


def test_a_recipe_that_is_not_here_falls_back_on_the_file(make_run: MakeRun) -> None:
    run = read_run(make_run("a run", recipe="of-yesterday"))
    assert shlex.split(comparison.command(run))[:3] == ["hexa", "pretrain", "--config"]
    assert shlex.split(comparison.command(run))[3].endswith("a run/config.yaml")


def test_a_command_to_be_copied_is_quoted_whole_and_runs_no_code_to_be_found(
    make_run: MakeRun, tmp_path: Path
) -> None:
    stranger = make_run("stranger", **{"x; touch sang #": 1, "data": "$(touch sang)"})
    words = shlex.split(comparison.command(read_run(stranger)).replace("\\\n", " "))
    assert [part in words for part in ("--x; touch sang #", "$(touch sang)")] == [True, True]
    assert comparison.command(read_run(make_run("control", data="a\x1b[31m"))).startswith(
        "hexa pretrain --config"
    )
    (tmp_path / "mine.py").write_text("open('sang', 'w')")
    own = make_run("own", recipe=f"{tmp_path}/mine.py:f")
    assert comparison.command(read_run(own)).startswith("hexa pretrain --config")
    assert not list(tmp_path.glob("**/sang"))


def test_the_command_of_an_adaptation_is_quoted_too_and_a_forged_request_falls_back(
    make_run: MakeRun,
) -> None:
    request: dict[str, Any] = {
        "backbone": "my start",
        "data": "$(touch sang)",
        "labelled": None,
        "domain": None,
    }
    request |= {"seconds": 3e6, "fields": {"epochs": "3"}}
    run = read_run(make_run())
    words = shlex.split(
        comparison.command(replace(run, adaptation={"request": request})).replace("\\\n", " ")
    )
    given = {
        "--data": "$(touch sang)",
        "--time": "50000m",
        "--epochs": "3",
        "--out": str(run.folder),
    }
    assert words == [
        "hexa",
        "adapt",
        "my start",
        *(word for option in given.items() for word in option),
    ]
    for wrong in (
        {},
        request | {"seconds": "soon"},
        request | {"fields": [1]},
        request | {"data": "a\x1b[31m"},
    ):
        assert comparison.command(replace(run, adaptation={"request": wrong})).startswith(
            "hexa pretrain --config"
        )


def test_facts_say_hard_examples_with_source_and_weight(make_run: MakeRun) -> None:
    hard = {
        "adversarial": {"kind": "adversarial", "weight": 1.0, "source": "std"},
        "late": {"kind": "cutmix", "weight": 0.5, "source": "adversarial"},
    }
    facts = dict(comparison.facts(read_run(make_run(hard_examples=hard))))
    assert facts["Hard examples"] == "adversarial, late (of adversarial, weight 0.5)"
    assert facts["Learning rate"] == "0.06"
    assert (
        dict(comparison.facts(read_run(make_run("plain", hard_examples={}))))["Hard examples"]
        == "none"
    )


def test_only_differences_are_listed_by_part(make_run: MakeRun) -> None:
    first, second = (
        {"optimizer": {"learning_rate": 0.1, "momentum": momentum}} for momentum in (0.9, 0.8)
    )
    runs = [
        read_run(run)
        for run in (make_run("a"), make_run("b", seed=1, **first), make_run("c", **second))
    ]
    table = comparison.differences(runs, "abc")
    assert table.header == ("field", "a", "b", "c")
    assert table.rows == (
        ("seed", "0", "1", "0"),
        ("optimizer.learning_rate", "0.06", "0.1", "0.1"),
        ("optimizer.momentum", "0.9", "0.9", "0.8"),
    )
    assert comparison.differences(runs[:1] * 2, "ab").rows == ()
    assert comparison.differences([runs[0], Run(Path("result.json"))], "ab").rows == ()


def test_a_part_that_some_lack_is_one_row(make_run: MakeRun) -> None:
    full = {"kind": "adversarial", "epsilon": 1.0}
    given = {"a": {"adversarial": full}, "b": {"adversarial": full | {"epsilon": 3.0}}, "c": {}}
    runs = [read_run(make_run(name, hard_examples=hard)) for name, hard in given.items()]
    assert comparison.differences(runs, "abc").rows == (
        ("hard_examples.adversarial", "present", "present", "–"),
        ("hard_examples.adversarial.epsilon", "1.0", "3.0", "–"),
    )


def test_environments_differ_in_what_they_are_not_when_they_were(make_run: MakeRun) -> None:
    folders = [make_run("a"), make_run("b")]
    fields = {
        "device": "Some CPU",
        "time": "2026-01-02",
        "versions": {"torch": "2.11.0", "numpy": "2"},
        "processes": 1,
    }
    (folders[0] / "environment.json").write_text(json.dumps(fields))
    fields |= {
        "time": "2026-01-03",
        "versions": {"torch": "2.15.0", "numpy": "2"},
        "command": ["hexa"],
    }
    (folders[1] / "environment.json").write_text(json.dumps(fields))
    runs = [read_run(folder) for folder in folders]
    assert comparison.other_environments(runs, "ab").rows == (
        ("versions.torch", "2.11.0", "2.15.0"),
    )
