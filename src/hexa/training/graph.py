"""Steps as CUDA graphs: a GPU then waits for no launches (`training.graph`).

Steps of one kind make the same calls (`Method.is_static`), on tensors that are where they were: parameters, buffers,
the crops and the values of `ops.draws`, which are copied there. So the first steps of a kind run call by call, and count;
the next one is captured, which computes nothing, and from then on replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hexa.config import reason
from hexa.core import Batch
from hexa.objective import Objective, Term
from hexa.ops.draws import StepValues
from hexa.runtime import processes
from hexa.training.losses import StepFacts
from hexa.training.optimizers import ScheduledOptimizer
from hexa.training.step import step

#: Steps of a kind before it is captured: kernels are chosen, the optimizer's state is made.
WARM_UP = 3


class Taken(NamedTuple):
    """What a step leaves for the log. Of a replayed step the tensors are overwritten by the next of its kind."""

    losses: dict[str, Tensor]
    """Of each term, 0-d, not weighted."""
    total: Tensor
    """The sum of the weighted terms, 0-d."""
    facts: StepFacts
    """Empty unless the step is logged."""


Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Turns a function into one that repeats its work on the same tensors."""


@dataclass
class _Kind:
    """Steps of one kind. replay: what was captured."""

    values: StepValues = field(default_factory=StepValues)
    warm: int = 0
    batch: Batch | None = None
    taken: Taken | None = None
    replay: Callable[[], None] | None = None


class Steps:
    """Takes the steps of a training.

    mode: replay steps if that is possible ("auto"), say why if it is not (True), or never do (False). say: gets that
    line. capture: `captured` unless given; a test has one for the CPU. replays: whether steps are still to be replayed.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: ScheduledOptimizer,
        device: torch.device,
        mode: bool | str = False,
        say: Callable[[str], object] = lambda line: None,
        capture: Capture | None = None,
    ) -> None:
        self.objective = objective
        self.optimizer = optimizer
        self.device = device
        self._say = say
        self._capture = capture
        self._kinds: dict[Hashable, _Kind] = {}
        obstacle = self._obstacle() if mode else "not asked for"
        self.replays = not obstacle
        optimizer.capturable = self.replays
        if mode is True and obstacle:
            say(f"training.graph: {obstacle}, so steps run call by call")
        if self.replays and capture is None:
            self._capture = Captures(device)

    def _obstacle(self) -> str:
        """Why steps cannot be replayed; empty if they can."""
        method = self.objective.method
        kinds = {method: type(method).__name__}
        moving = [name for name, hard in self.objective.hard_examples.items() if not hard.is_static]
        if self._capture is None and self.device.type != "cuda":
            return "there is no CUDA device"
        if processes.world_size() > 1:
            return "several processes exchange numbers on the host"
        if moving or not method.is_static:
            return f"steps of {', '.join(moving) or kinds[method]} differ"
        if not self.optimizer.may_be_captured:
            return f"optimizer {self.optimizer.config.name} has numbers that change on the host"
        return ""

    def take(
        self,
        batch: Batch,
        number: int,
        logged: bool = False,
        ready: Callable[[Taken], object] = lambda taken: None,
    ) -> Taken:
        """Take step `number` on a prepared batch. ready: called once, with what the step leaves; before the weights
        change unless the step is replayed. It may raise."""
        if not self.replays:
            return self._whole(batch, number, logged, ready)
        kind = self._kinds.setdefault(self._key(batch, number, logged), _Kind())
        if kind.warm < WARM_UP:
            kind.warm += 1
            with kind.values.of(batch.stream, number):
                return self._whole(batch, number, logged, ready)
        if kind.replay is None and not self._captured(kind, batch, number, logged):
            return self._whole(batch, number, logged, ready)
        assert kind.batch is not None
        assert kind.replay is not None
        torch._foreach_copy_([*kind.batch.crops], [*batch.crops])
        kind.batch.index.copy_(batch.index)
        kind.values.fill(batch.stream, number)
        kind.replay()
        self.optimizer.set_rates(number)
        assert kind.taken is not None
        ready(kind.taken)
        return kind.taken

    def _captured(self, kind: _Kind, batch: Batch, number: int, logged: bool) -> bool:
        """Capture a step of this kind; False if that failed, and from then on all steps run call by call."""
        crops = tuple(crop.clone() for crop in batch.crops)
        static = replace(batch, crops=crops, index=batch.index.clone())
        kind.batch = static
        kind.values.fill(batch.stream, number)

        def run() -> None:
            with kind.values.as_filled():
                kind.taken = self._whole(static, number, logged)

        assert self._capture is not None
        try:
            kind.replay = self._capture(run)
        except Exception as error:
            self._say(f"training.graph: {reason(error)}; steps run call by call")
            self.optimizer.optimizer.zero_grad(set_to_none=True)
            self._kinds.clear()
            self.replays = False
        return self.replays

    def _whole(
        self,
        batch: Batch,
        number: int,
        logged: bool,
        ready: Callable[[Taken], object] = lambda taken: None,
    ) -> Taken:
        """A step, call by call."""
        taken = Taken({}, torch.zeros((), device=self.device), StepFacts(wanted=logged))

        def seen(term: Term) -> None:
            taken.total.add_(term.loss.detach())
            for name, part in term.parts.items():
                taken.losses[name] = part.loss
                taken.facts.look(name, part)

        step(self.objective, self.optimizer, batch, number, seen=seen, ready=lambda: ready(taken))
        return taken

    def _key(self, batch: Batch, number: int, logged: bool) -> Hashable:
        """What steps of one kind have in common."""
        epoch = number // self.optimizer.steps_per_epoch
        layouts = [(crop.shape, crop.stride(), crop.dtype) for crop in batch.crops]
        return (
            *(type(batch), batch.known, len(batch), tuple(layouts), logged),
            *(tuple(self.objective.present(number)), tuple(self.objective.starting(number))),
            *(self.objective.method.phase(number), self.optimizer.learning(epoch)),
        )


class Captures:
    """Captures steps on a GPU; their memory is shared, since one is replayed at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture `run`, which computes nothing."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph.replay
