"""Catastrophic overfitting (Wong et al., ICLR 2020): a network resists only the one-step attack of
its training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from hexa.core import Batch
from hexa.objective import STD, Objective

#: Number of images to attack at the end of an epoch.
_IMAGES = 64


@contextmanager
def unchanged(method: nn.Module) -> Iterator[None]:
    """Restore the buffers on exit, because encoding pseudo-labels updates running statistics."""
    before = [(buffer, buffer.clone()) for buffer in method.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def one_step_and_many(objective: Objective, batch: Batch) -> dict[str, tuple[float, float]]:
    """Return the loss of some images under the training attack and under a stronger attack, for
    each hard example that has one.

    Buffers that these passes change, such as running statistics, are restored.
    """
    method = objective.method
    crops = tuple(crop[:_IMAGES] for crop in batch.crops)
    some = replace(batch, crops=crops, index=batch.index[:_IMAGES])
    found = {}
    for name, hard in objective.present(batch.step).items():
        judge = hard.judge()
        if judge is None or not hard.weight or hard.source != STD:
            continue
        both = {"one": hard, "many": judge}
        score = objective.score
        attacks = Objective(method, both, autocast=score.autocast, accumulate=score.accumulate)
        with unchanged(method):
            made = attacks.examples(some)
            with torch.no_grad():
                losses = {n: float(made[n].score_at(made[n].crops).mean()) for n in both}
        found[name] = losses["one"], losses["many"]
    return found
