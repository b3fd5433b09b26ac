"""One training step, for the trainer and for all measurements of its cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch

from hexa.core import Batch
from hexa.objective import Objective, Term
from hexa.runtime import processes
from hexa.training.optimizers import ScheduledOptimizer


def prepared(batch: Batch, channels_last: bool) -> Batch:
    """Return the batch in the network's memory layout, and seed stochastic layers (dropout) for
    this step and process."""
    torch.manual_seed(batch.stream.child("layers", processes.rank()).integer())
    if not channels_last or batch.crops[0].ndim != 4:  # tokens have no channels to move
        return batch
    layout = torch.channels_last
    return replace(
        batch, crops=tuple(crop.contiguous(memory_format=layout) for crop in batch.crops)
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
    """Take step `number`, counted from 0, on a prepared batch: backward of all terms, update,
    commit.

    seen: called with each term after its backward.
    ready: called when all gradients exist and the weights have not changed yet; may raise.
    """
    # enable gradients of the parameters that learn in this epoch
    optimizer.thaw(number // optimizer.steps_per_epoch)
    # back-propagate one term after another: clean, adversarial, cut-mixed …
    # each frees its graph before the next is built; the outer autocast is off, but inside it each
    # weight is cast once for all terms
    with torch.autocast(batch.crops[0].device.type, enabled=False):
        for term in objective.losses(batch):
            # during the last backward, the processes already send each other what is ready
            with optimizer.average.sending() if term.last else nullcontext():
                term.loss.backward()  # type: ignore[no-untyped-call]
            seen(term)
    # average the gradients over all processes, once
    optimizer.average.finish()
    ready()
    # set the rates of this step, update the weights, delete the gradients
    optimizer.step(number)
    # update the state of the method: momentum twin, queue, bank, prototypes
    objective.commit(batch)
