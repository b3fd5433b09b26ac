"""Trains the whole network on all labels by Adamax; the rate is chosen on held-out training images.

F27.
"""

from __future__ import annotations

from functools import partial

import pydantic
import torch

from hexa.evaluation.protocol import Outcome, Positive, Protocol, Task
from hexa.evaluation.protocols.linear import AdamaxOptions, identity
from hexa.evaluation.split import hold_out
from hexa.evaluation.supervised import Plan, tuned
from hexa.runtime.random import Stream


class FineTuneOptions(AdamaxOptions):
    """Options of the protocol `fine-tune`. Crops and flips in training, resized images in testing (D29)."""

    batch_size: int = pydantic.Field(default=256, gt=1)
    """Images per step."""
    learning_rates: Positive[float] = pydantic.Field(default=(0.0005, 0.001, 0.01), min_length=1)
    """Learning rates of Adamax for network and classifier; the best one on held-out training images is taken."""
    score_every: int = pydantic.Field(default=1, gt=0)
    """Epochs between two scorings of the last run; top1 is the best of them."""


def run(task: Task, options: FineTuneOptions) -> Outcome:
    """Accuracy after training with the chosen rate on all training images: best epoch, and last."""
    stream = Stream(task.seed).child("fine-tune")
    rates = options.learning_rates
    held_out = {}
    if len(rates) > 1:
        kept, out = hold_out(task.fit, options.selection, stream.child("selection"))
        for rate in rates:
            label = f"choosing the rate: {rate:g}"
            plan = _plan(options, rate)
            tried = tuned(task, kept, out, plan, stream, label, options.epochs)
            held_out[rate] = tried.metrics["top1_last"]
    chosen = max(rates, key=lambda rate: held_out.get(rate, 0.0))
    plan = _plan(options, chosen)
    outcome = tuned(task, task.fit, task.test, plan, stream, "fine-tuning", options.score_every)
    outcome.grouped = len(rates) > 1 and task.fit.groups() is not None
    outcome.details["learning_rate"] = chosen
    outcome.details["held_out"] = {str(rate): top1 for rate, top1 in held_out.items()}
    return outcome


def _plan(options: FineTuneOptions, rate: float) -> Plan:
    adamax = torch.optim.Adamax
    return Plan(options.epochs, options.batch_size, adamax, rate, rate, 0.1, (0.35, 0.7))


PRESETS = {"cifar": FineTuneOptions()}
PROTOCOL = Protocol(
    run=run,
    presets=PRESETS,
    identity=partial(identity, PRESETS),
    extracts=lambda options: (),
)
