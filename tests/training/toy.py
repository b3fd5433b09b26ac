"""A small complete training: MoCo on random images, deterministic, a few milliseconds per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hexa.core import Batch, HardExample, Method, Setting
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.methods.moco import MoCoConfig
from hexa.nn.backbones import NetworkConfig, build
from hexa.objective import Objective
from hexa.runtime import processes
from hexa.runtime.checkpoints import checksum
from hexa.runtime.random import Stream
from hexa.training import optimizers
from hexa.training.config import TrainingConfig
from hexa.training.journal import Journal
from hexa.training.monitor import Watch
from hexa.training.optimizers import OptimizerConfig, ScheduledOptimizer
from hexa.training.schedules import ScheduleConfig
from hexa.training.state import restore
from hexa.training.trainer import Trainer

BATCH = 8
SIZE = 12
STEPS = 5
SGD = OptimizerConfig(learning_rate=0.05)
#: Hard examples from the first step on; and some that set in at the steps 4 and 7 of 15.
NOW: dict[str, HardExample] = {"adversarial": Adversarial(), "cutmix": CutMix()}
LATE: dict[str, HardExample] = {
    "adversarial": Adversarial(start=0.25),
    "cutmix": CutMix(start=0.45),
}


class ToyLoader:
    """Noise around two prototypes, a function of the step alone. `before` is called with every batch's global step."""

    def __init__(
        self, before: Callable[[int], None] = lambda step: None, steps_per_epoch: int = STEPS
    ) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.batch_size = BATCH
        self.wait_seconds = 0.0
        self.sets = None
        self.problems: list[str] = []
        self.before = before
        self.asked: list[int] = []

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        for step in range(start_step, self.steps_per_epoch):
            number = epoch * self.steps_per_epoch + step
            self.before(number)
            self.asked.append(number)
            stream = Stream(0).child("step", number)
            generator = stream.child("pixels").generator()
            crops = tuple(torch.rand(BATCH, 3, SIZE, SIZE, generator=generator) for _ in range(2))
            yield Batch(crops, torch.arange(BATCH), stream, number)

    def passes(self, epoch: int, prepare: object) -> Any:
        """MoCo makes no passes."""
        return SimpleNamespace(labels=None, stream=Stream(0))


def method(dtype: torch.dtype = torch.float32) -> Method:
    torch.manual_seed(0)
    network = build(NetworkConfig(name="small-resnet", widths=(4, 8)))
    setting = Setting(64, BATCH, world_size=processes.world_size(), branches=("main", "aux"))
    return (
        MoCoConfig(queue_size=32, dim=8, bn_groups=2, momentum=0.9)
        .build(network, setting)
        .to(dtype)
    )


def scheduled(
    model: nn.Module, epochs: int, steps: int, config: OptimizerConfig = SGD, **more: Any
) -> ScheduledOptimizer:
    made = optimizers.build(model.parameters(), config, BATCH)
    return ScheduledOptimizer(made, config, ScheduleConfig(), epochs, steps, **more)


def trainer(
    folder: Path | None = None,
    loader: ToyLoader | None = None,
    epochs: int = 3,
    state: Any = None,
    hard: Mapping[str, HardExample] = NOW,
    dtype: torch.dtype = torch.float32,
    optimizer: OptimizerConfig = SGD,
    model: Method | None = None,
    **training: Any,
) -> Trainer:
    """Return a trainer, resumed from `state` if given; `training` overrides fields of its
    TrainingConfig."""
    model = model or method(dtype)
    fields = {"log_every": 2, "channels_last": False, **training}
    loader = loader or ToyLoader()
    journal = Journal(folder if processes.is_main() else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        journal.open(0 if state is None else state["step"])
    made = Trainer(
        Objective(model, hard, steps=epochs * loader.steps_per_epoch),
        scheduled(model, epochs, loader.steps_per_epoch, optimizer),
        loader,
        TrainingConfig(**fields),
        torch.device("cpu"),
        folder,
        journal,
        fingerprint="toy",
        watch=Watch(model.chance_loss, None),
    )
    if state is not None:
        with torch.no_grad():  # whatever the fresh weights are, they must not matter
            for p in model.parameters():
                p += 1
        restore(made, state)
    return made


def poison(made: Trainer, term: str, value: float) -> None:
    """Make the loss of this term non-finite in the seventh step."""
    losses = made.objective.losses

    def poisoned(batch: Batch) -> Iterator[Any]:
        for found in losses(batch):
            if made.step == 6 and term in found.parts:
                found.parts[term].loss.fill_(value)
            yield found

    made.objective.losses = poisoned  # type: ignore[method-assign]


def assert_identical(left: Mapping[str, object], right: Mapping[str, object]) -> None:
    assert list(left) == list(right)
    assert not [name for name in left if checksum(left[name]) != checksum(right[name])]
