"""The trainer in two processes: one set of files, one decision to stop, the weights of one process with two groups."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.core import Batch
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.moco import MoCo
from hexa.runtime import checkpoints, processes
from hexa.runtime.signals import Interrupted
from hexa.training.journal import METRICS
from hexa.training.losses import LossWindow, NonFiniteError
from hexa.training.trainer import Trainer
from tests.distributed.together import run_together
from tests.end_to_end.endings import metric_lines
from tests.training import toy
from tests.training.toy import BATCH, STEPS, ToyLoader


class Share(ToyLoader):
    """This process's rows of every batch."""

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        size = BATCH // processes.world_size()
        rows = slice(processes.rank() * size, (processes.rank() + 1) * size)
        for batch in super().epoch(epoch, start_step):
            crops = tuple(
                crop[rows].double() for crop in batch.crops
            )  # the two differ by less than a step in fp64
            yield replace(batch, crops=crops, index=batch.index[rows])


class Prepares(MoCo):
    """Prepares each epoch, in which a stop of several processes waits."""

    def start_epoch(self, epoch: int, data: Any) -> dict[str, float]:
        self.__dict__.setdefault("saved", []).append(self.__dict__["trainer"].saved_step)
        return {}


def trainer(folder: Path, before: Callable[[int], None] = lambda step: None) -> Trainer:
    return toy.trainer(
        folder, Share(before), epochs=2, hard={"adversarial": Adversarial()}, dtype=torch.float64
    )


def parameters(made: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: value.detach().clone() for name, value in made.objective.method.named_parameters()
    }


def work(home: str) -> dict[str, Any]:
    folder = Path(home)
    rank = processes.rank()
    found: dict[str, Any] = {}

    made = trainer(folder / "whole")
    made.run()
    found["whole"] = parameters(made)

    def interrupt(step: int) -> None:
        if rank == 1 and step == 3:
            signal.raise_signal(signal.SIGTERM)

    made = trainer(folder / "stopped", interrupt)
    try:
        made.run()
    except Interrupted as stop:
        found["stopped"] = (stop.exit_code, stop.step)

    made = trainer(folder / "prepared")
    made.config = made.config.model_copy(update={"checkpoint_every": 9})
    method = made.objective.method
    method.__class__ = Prepares
    method.__dict__["trainer"] = made
    made.run()
    found["prepared"] = method.__dict__["saved"]

    made = trainer(folder / "nan")
    if rank == 1:
        toy.poison(made, "adversarial", float("inf"))
    try:
        made.run()
    except NonFiniteError as error:
        found["nan"] = (error.step, error.term, error.speaks)

    window, again = (LossWindow(["std"], torch.device("cpu")) for _ in range(2))
    window.add({"std": torch.tensor(float(rank))}, torch.tensor(2.0 * rank), 1)
    again.state = window.state
    found["window"] = torch.stack([*again.means().values()])
    return found


Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module", autouse=True)
def found(home: Path) -> Found:
    return run_together(2, work, str(home))


def test_two_process_weights(home: Path, found: Found, tmp_path: Path) -> None:
    """Both processes hold the weights of one process with two groups, and log the mean of their losses."""
    alone = trainer(tmp_path / "alone")
    alone.run()
    for name, value in parameters(alone).items():
        assert torch.equal(found[0]["whole"][name], found[1]["whole"][name]), name
        torch.testing.assert_close(found[0]["whole"][name], value, rtol=1e-8, atol=1e-9, msg=name)
    both, one = (
        [line["loss/std"] for line in metric_lines(folder, "train")]
        for folder in (home / "whole", tmp_path / "alone")
    )
    assert both == pytest.approx(one, rel=1e-5)


def test_single_writer_process(home: Path) -> None:
    """One process writes the files."""
    assert {path.name for path in (home / "whole").iterdir()} == {"checkpoints", METRICS}
    assert (
        checkpoints.newest_good(home / "whole" / "checkpoints", pytest.fail)[1]["world_size"] == 2
    )


def test_signal_stop_step(home: Path, found: Found) -> None:
    """A signal to one process stops both at the same step."""
    assert found[0]["stopped"] == found[1]["stopped"] == (143, 4)
    assert checkpoints.path_of(home / "stopped" / "checkpoints", 4).exists()


def test_save_before_preparation(found: Found) -> None:
    """Several processes save before a method prepares an epoch, but not before the first step."""
    assert [one["prepared"] for one in found] == [[-1, STEPS]] * 2


def test_nonfinite_loss_stop(found: Found) -> None:
    """A loss that is not finite in one process stops both, and the main one reports it."""
    assert [one["nan"] for one in found] == [(7, "adversarial", rank == 0) for rank in range(2)]


def test_own_loss_window(found: Found) -> None:
    """A checkpoint between two log lines holds the sums of both."""
    assert [result["window"].tolist() for result in found] == [[0.0, 0.0], [1.0, 2.0]]
