"""Replay steps as CUDA graphs, so that a GPU does not wait for launches (`training.graph`).

Steps of one kind make the same calls of torch (`Method.is_static`) on the same tensors: parameters,
buffers, and static copies of the crops and of the values of `ops.draws`. The first steps of a kind
run eagerly. The next one is captured, which computes nothing, and from then on steps are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

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

#: Eager steps of a kind before the capture. They choose kernels and create the optimizer's state.
WARM_UP = 3


class Taken(NamedTuple):
    """Results of a step for the log. The next replayed step of the same kind overwrites them."""

    losses: dict[str, Tensor]
    """Unweighted loss of each term, 0-d."""
    total: Tensor
    """The sum of the weighted terms, 0-d."""
    facts: StepFacts
    """Empty unless the step is logged."""


Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Turns a function into one that repeats its calls of torch on the same tensors."""


@dataclass
class _Kind:
    """Steps of one kind.

    values: what differs between them.
    warm: number of eager steps so far.
    batch: static copies of the crops.
    taken: static results.
    replay: replays the captured step.
    """

    values: StepValues = field(default_factory=StepValues)
    warm: int = 0
    batch: Batch | None = None
    taken: Taken | None = None
    replay: Callable[[], None] | None = None


class Steps:
    """Takes the steps of a training.

    wanted: replay steps if possible.
    say: prints why it is not possible.
    capture: `captures` if None; tests on a CPU have another one.
    replays: False if all steps are eager.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: ScheduledOptimizer,
        device: torch.device,
        wanted: bool = False,
        say: Callable[[str], object] = lambda line: None,
        capture: Capture | None = None,
    ) -> None:
        self.objective = objective
        self.optimizer = optimizer
        self.device = device
        self._say = say
        self._capture = capture
        self._kinds: dict[Hashable, _Kind] = {}
        obstacle = self._obstacle()
        self.replays = wanted and not obstacle
        optimizer.capturable = self.replays
        if wanted and obstacle:
            say(f"training.graph: {obstacle}, so steps are eager")
        if self.replays and capture is None:
            self._capture = captures()

    def _obstacle(self) -> str:
        """Return why steps cannot be replayed; empty if they can."""
        method = self.objective.method
        moving = [name for name, hard in self.objective.hard_examples.items() if not hard.is_static]
        if self._capture is None and self.device.type != "cuda":
            return "no CUDA device"
        if processes.world_size() > 1:
            return "several processes exchange numbers on the host"
        if self.objective.score.accumulate > 1:
            return "gradient accumulation seeds layers on the host"
        if moving or not method.is_static:
            return f"steps of {', '.join(moving) or type(method).__name__} differ"
        if not self.optimizer.may_be_captured:
            return f"the weight decay of {self.optimizer.config.name} changes on the host"
        return ""

    def take(
        self,
        batch: Batch,
        number: int,
        logged: bool = False,
        ready: Callable[[Taken], object] = lambda taken: None,
    ) -> Taken:
        """Take step `number` on a prepared batch.

        logged: also collect the facts for the log.
        ready: called once with the results, before the weights change unless the step is replayed;
        may raise.
        """
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
        """Capture a step of this kind; return False if that fails, after which all steps are eager."""
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
            self._say(f"training.graph: {reason(error)}; steps are eager")
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
        """Take a step eagerly."""
        taken = Taken({}, torch.zeros((), device=self.device), StepFacts(wanted=logged))

        def seen(term: Term) -> None:
            taken.total.add_(term.loss.detach())
            for name, part in term.parts.items():
                taken.losses[name] = part.loss
                taken.facts.look(name, part)

        step(self.objective, self.optimizer, batch, number, seen=seen, ready=lambda: ready(taken))
        return taken

    def _key(self, batch: Batch, number: int, logged: bool) -> Hashable:
        """Return what steps of one kind have in common."""
        epoch = number // self.optimizer.steps_per_epoch
        layouts = [(crop.shape, crop.stride(), crop.dtype) for crop in batch.crops]
        return (
            *(type(batch), batch.known, len(batch), tuple(layouts), logged),
            *(tuple(self.objective.present(number)), tuple(self.objective.starting(number))),
            *(self.objective.method.phase(number), self.optimizer.learning(epoch)),
        )


def captures() -> Capture:
    """Return a capture for a GPU. All share memory, because only one step is replayed at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # other threads may load images meanwhile
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            run()
        return graph.replay

    return capture
