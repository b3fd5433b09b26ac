"""One step of training: the trainer takes it, and whatever measures what training costs takes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from hexa.core import Batch
from hexa.objective import Objective, Term
from hexa.runtime import processes
from hexa.training.optimizers import ScheduledOptimizer


def prepared(batch: Batch, channels_last: bool) -> Batch:
    """The batch in the layout that its network wants. Seeds stochastic layers (dropout) for this step and process."""
    torch.manual_seed(batch.stream.child("layers", processes.rank()).integer())
    if not channels_last or batch.crops[0].ndim != 4:  # tokens have no channels to move
        return batch
    return replace(
        batch,
        crops=tuple(crop.contiguous(memory_format=torch.channels_last) for crop in batch.crops),
    )


def step(
    objective: Objective,
    optimizer: ScheduledOptimizer,
    batch: Batch,
    number: int,
    *,
    seen: Callable[[Term], object] = lambda term: None,
    ready: Callable[[], object] = lambda: None,
) -> None:
    """Step `number`, counted from 0, on a prepared batch: backward of all terms, update, commit.

    seen: called with each term after its backward. ready: called when all gradients are there and its
    weights have not changed yet; may raise.
    """
    optimizer.thaw(number // optimizer.steps_per_epoch)
    for term in objective.losses(batch):
        term.loss.backward()  # type: ignore[no-untyped-call]  # frees the graph before the next term is built
        seen(term)
    processes.average_gradients(optimizer.parameters)
    ready()
    optimizer.step(number)
    objective.commit(batch)
