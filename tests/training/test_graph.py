"""Replayed steps, with a capture that repeats the calls of torch instead of a CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.core import HardExample
from hexa.hard_examples.randaugment import RandAugment
from hexa.testing.recording import Recording
from hexa.training import graph
from hexa.training.optimizers import OptimizerConfig
from hexa.training.state import state_of
from hexa.training.trainer import Trainer

from ..end_to_end.endings import metric_lines
from .toy import LATE, NOW, ToyLoader, assert_identical, scheduled, trainer

EPOCHS = 4


#: Every optimizer, and what else changes from step to step.
OPTIMIZERS = [
    {"name": "sgd", "learning_rate": 0.05, "nesterov": True},
    {"name": "larc", "learning_rate": 0.5},
    {"name": "lars", "learning_rate": 0.5, "max_gradient_norm": 1.0},
    {"name": "adamw", "learning_rate": 0.001, "weight_decay": 0, "final_weight_decay": 0.4},
    {"name": "muon", "learning_rate": 0.05},
]


def by_name(fields: dict[str, Any]) -> str:
    return str(fields["name"])


class Again:
    """Replays a step by calling it the first time, and by repeating its calls of torch from then on.

    kinds: of which steps were captured. replays: how many.
    """

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.kinds = 0
        self.replays = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        if self.failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.kinds += 1
        recorded: list[Recording] = []

        def replay() -> None:
            self.replays += 1
            if recorded:
                recorded[0].replay()
                return
            with Recording() as recording:
                run()
            recorded.append(recording)
            assert not recording.reads

        return replay


def made(folder: Path, capture: Again | None, **given: Any) -> Trainer:
    """A trainer whose steps are replayed; eager with the same optimizer without `capture`."""
    found = trainer(folder, epochs=EPOCHS, **given)
    said: list[str] = []
    wanted = capture is not None
    steps = graph.Steps(
        found.objective, found.optimizer, found.device, wanted, said.append, capture
    )
    found.optimizer.capturable = True
    found.steps = steps
    found.said = said  # type: ignore[attr-defined]
    return found


def ends(found: Trainer) -> dict[str, Any]:
    state = state_of(found)
    return {name: state[name] for name in ("method", "optimizer", "window", "step")}


@pytest.mark.parametrize(
    ("hard", "fields"),
    [(LATE, OPTIMIZERS[0]), *((NOW, fields) for fields in OPTIMIZERS)],
    ids=["late", *map(by_name, OPTIMIZERS)],
)
def test_replayed_steps(
    tmp_path: Path, hard: dict[str, HardExample], fields: dict[str, Any]
) -> None:
    """Bit for bit those of an eager training, log lines too; hard examples that start make further kinds."""
    capture = Again()
    given: dict[str, Any] = {"hard": hard, "optimizer": OptimizerConfig(**fields)}
    replayed = made(tmp_path / "replayed", capture, **given)
    eager = made(tmp_path / "eager", None, **given)
    for one in (replayed, eager):
        one.run()
    assert_identical(ends(replayed), ends(eager))
    assert metric_lines(tmp_path / "replayed") == metric_lines(tmp_path / "eager")
    assert capture.replays > capture.kinds >= 2  # log steps are a kind of their own
    assert not replayed.said  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_resumed_replay(tmp_path: Path, name: Any) -> None:
    """A training that is resumed, and warms up again, ends where an uninterrupted one ends."""
    optimizer = OptimizerConfig(name=name, learning_rate=0.01)
    whole = made(tmp_path / "whole", Again(), optimizer=optimizer)
    whole.run()
    states: list[Any] = []

    def note(number: int) -> None:
        if number == 12:
            states.append(copy.deepcopy(state_of(first)))

    first = made(tmp_path / "first", Again(), loader=ToyLoader(note), optimizer=optimizer)
    first.run()
    second = made(tmp_path / "second", Again(), state=states[0], optimizer=optimizer)
    second.run()
    assert_identical(ends(second), ends(whole))


def test_failed_capture(tmp_path: Path) -> None:
    """A note, and eager steps with the same end."""
    failed = made(tmp_path / "failed", Again(failing=True))
    eager = made(tmp_path / "eager", None)
    for one in (failed, eager):
        one.run()
    assert_identical(ends(failed), ends(eager))
    assert len(failed.said) == 1  # type: ignore[attr-defined]
    assert "stream is capturing" in failed.said[0]  # type: ignore[attr-defined]
    assert not failed.steps.replays


@pytest.mark.parametrize(
    ("fields", "hard", "part"),
    [
        ({"final_weight_decay": 0.1}, NOW, "weight decay of sgd"),
        ({}, {"ra": RandAugment()}, "ra"),
    ],
)
def test_steps_that_differ(fields: dict[str, Any], hard: dict[str, HardExample], part: str) -> None:
    """Such steps are eager, and a line says why."""
    objective = trainer(hard=hard).objective
    config = OptimizerConfig(**fields)
    optimizer = scheduled(objective.method, 1, 5, config)
    said: list[str] = []
    steps = graph.Steps(objective, optimizer, torch.device("cpu"), True, said.append, Again())
    assert not steps.replays
    assert not optimizer.capturable
    assert part in said[0]


def test_cpu_is_eager() -> None:
    """There is nothing to capture on a CPU."""
    found = trainer(graph="auto")
    assert not found.steps.replays
    assert not found.optimizer.capturable


@pytest.mark.parametrize("fields", OPTIMIZERS, ids=by_name)
def test_rates_as_tensors(fields: dict[str, Any]) -> None:
    """Equal to numbers up to rounding; in the end the groups have numbers."""
    ends = []
    for capturable in (False, True):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 3)).double()
        optimizer = scheduled(network, 5, 1, OptimizerConfig(**fields), capturable=capturable)
        for number in range(4):
            network(torch.rand(2, 3, 8, 8, dtype=torch.float64)).square().sum().backward()
            optimizer.step(number)
        ends.append([p.detach() for p in network.parameters()])
        groups = optimizer.optimizer.param_groups
        assert all(isinstance(g[n], float) for g in groups for n in ("lr", "weight_decay"))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
