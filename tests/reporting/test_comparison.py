"""Facts, commands, differences and evaluations of runs."""

from __future__ import annotations

import shlex
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
