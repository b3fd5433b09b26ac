"""Test cases: a method with hard examples, small enough to check the laws on a CPU in fp64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hexa.core import MAIN, Batch, Example, HardExample, Method, MethodConfig, PseudoLabels, Setting
from hexa.nn.backbones import NetworkConfig, build
from hexa.objective import Objective, ObjectiveConfig
from hexa.runtime import processes
from hexa.runtime.gradients import average_gradients
from hexa.runtime.random import Stream

#: Images per step.
BATCH = 8
#: Side of an image in pixels.
SIZE = 12
#: Number of images in the data set.
DATA = 64
NETWORK = NetworkConfig(name="small-resnet", widths=(4, 8))


@dataclass(frozen=True)
class Case:
    """A method with some hard examples.

    sizes: side of each view in pixels.
    network: configuration of the backbone.
    kept: freeze the backbone's batch-norm statistics at their initial values.
    """

    method: MethodConfig
    hard_examples: Mapping[str, HardExample] = field(default_factory=dict)
    sizes: tuple[int, ...] = (SIZE, SIZE)
    network: NetworkConfig = NETWORK
    kept: bool = False

    def build(self, dtype: torch.dtype = torch.float64, network: nn.Module | None = None) -> Method:
        """Build the method with seeded weights, and start its first epoch."""
        torch.manual_seed(0)
        branches = dict.fromkeys(
            ["main", *(b for hard in self.hard_examples.values() for b in hard.branches())]
        )
        setting = Setting(
            DATA,
            BATCH,
            epochs=2,
            world_size=processes.world_size(),
            num_crops=len(self.sizes),
            branches=tuple(branches),
            keep_statistics=self.kept,
            streams=self.network.streams,
        )
        method = self.method.build(network or build(self.network), setting).to(dtype)
        method.start_epoch(0, CasePasses(self, dtype))
        return method

    def batch(self, step: int = 0, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
        """Return a seeded batch of random crops that include the values 0 and 1; with several
        processes, this process's share."""
        stream = Stream(seed).child("step", step)
        generator = stream.child("pixels").generator()
        crops = [
            (torch.rand(BATCH, 3, size, size, generator=generator, dtype=dtype) * 1.4 - 0.2).clamp(
                0, 1
            )
            for size in self.sizes
        ]
        return share(
            Batch(tuple(crops), torch.randperm(DATA, generator=generator)[:BATCH], stream, step)
        )

    def embedded(self, method: Method) -> tuple[tuple[Tensor, ...], Tensor, PseudoLabels]:
        """Return the anchors of the first batch, their embedding [V, B, D], and the pseudo-labels."""
        data = self.batch()
        anchors = method.anchors(data)
        embedding = method.embed(anchors, MAIN)
        return anchors, embedding, method.pseudo_labels(data, embedding.detach())

    def objective(
        self, method: Method, config: ObjectiveConfig | None = None, **options: Any
    ) -> Objective:
        """Return the objective of the case for this method."""
        return Objective(method, self.hard_examples, config, **options)

    def examples(self) -> dict[str, Example]:
        """Return the examples of a batch by name, the clean views among them."""
        return self.objective(self.build()).examples(self.batch())

    def grouped(self, groups: int = 1) -> Case:
        """Return the case with this number of `bn_groups` in its method and in nested methods."""
        fields = _grouped(self.method.model_dump(), groups)
        return replace(self, method=type(self.method).model_validate(fields))

    @property
    def fits(self) -> bool:
        """True if all hard examples work with the method."""
        return not any(hard.refusal(self.method) for hard in self.hard_examples.values())


def _grouped(fields: dict[str, Any], groups: int) -> dict[str, Any]:
    made = dict(fields)
    for name, value in fields.items():
        if isinstance(value, dict):
            made[name] = _grouped(value, groups)
        elif name == "bn_groups":
            made[name] = groups
    return made


def share(whole: Batch) -> Batch:
    """Return this process's rows of a batch."""
    size = len(whole) // processes.world_size()
    rows = slice(processes.rank() * size, (processes.rank() + 1) * size)
    return replace(whole, crops=tuple(crop[rows] for crop in whole.crops), index=whole.index[rows])


class CasePasses:
    """Passes over the images of a case. Views omit the last few images, so that some images have no
    cluster."""

    labels: torch.Tensor | None = None

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case = case
        self.dtype = dtype
        self.stream = Stream(7).child("epoch")

    def views(self) -> Iterator[Batch]:
        for number in range(DATA // BATCH - 1):
            whole = self.case.batch(number, 7, self.dtype)
            yield replace(
                whole,
                index=number * BATCH + processes.rank() * len(whole) + torch.arange(len(whole)),
            )

    def images(self) -> Iterator[Batch]:
        crops = torch.rand(DATA, 3, SIZE, SIZE, generator=self.stream.generator(), dtype=self.dtype)
        yield share(Batch((crops,), torch.arange(DATA), self.stream))


def train(
    case: Case, steps: int = 2, method: Method | None = None, first: int = 0, **options: Any
) -> Method:
    """Take some training steps from step `first` on; return the method."""
    method = method or case.build()
    objective = case.objective(method, **options)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for step in range(first, first + steps):
        one_step(objective, optimizer, case.batch(step))
    return method


def one_step(objective: Objective, optimizer: torch.optim.Optimizer, data: Batch) -> None:
    """Take one training step on this process's share of a batch, as the trainer does."""
    for term in objective.losses(data):
        term.loss.backward()  # type: ignore[no-untyped-call]
    average_gradients([p for group in optimizer.param_groups for p in group["params"]])
    optimizer.step()
    optimizer.zero_grad()
    objective.commit(data)
