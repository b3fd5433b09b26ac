"""The training of a learner: the objective of `hexa.core` with a few labels, and the score of its slow copy."""

from __future__ import annotations

import copy
import math
from contextlib import closing
from typing import Any

import torch
from timm.optim import param_groups_weight_decay

from hexa.core import HardExample, Setting
from hexa.data.sources.source import Labels
from hexa.evaluation.protocol import Outcome, Task
from hexa.evaluation.supervised import accuracy, new_classifier
from hexa.objective import Objective
from hexa.objective.shares import branches
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa_paper.semi_supervised.batches import Batches
from hexa_paper.semi_supervised.learner import Learner, RotationLearner
from hexa_paper.semi_supervised.options import RESOLVED, SemiSupervisedOptions


def train(
    task: Task,
    labelled: Labels,
    options: SemiSupervisedOptions,
    stream: Stream,
) -> Outcome:
    """Accuracy of the slow copy after the last step. labelled: positions of the images whose label is seen.

    Network and classifier learn alike, batch-norms included.
    """
    objective = _objective(task, labelled, options, stream)
    learner = objective.method
    assert isinstance(learner, Learner)
    # batch-norms and biases do not decay
    groups = param_groups_weight_decay(learner.encoder, options.weight_decay)
    optimizer = torch.optim.SGD(groups, options.learning_rate, momentum=0.9, nesterov=True)
    how = (options.labelled_batch, options.rule.ratio, stream.child("views"), options.mirrored)
    with closing(Batches(task, labelled, *how)) as batches:
        for batch in batches.steps(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * math.cos(
                    7 * math.pi * batch.step / (16 * options.steps)
                )
            for term in objective.losses(batch):
                term.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            objective.commit(batch)
            task.report(options.learner, batch.step + 1, options.steps)
    backbone = copy.deepcopy(task.backbone)
    backbone.network.load_state_dict(learner.twin.backbone.state_dict())
    metrics = accuracy(task, backbone, learner.twin.head, task.test)
    effective = {name: getattr(options.resolved, name) for name in RESOLVED}
    return Outcome(metrics, effective=effective)


class LearnersObjective(Objective):
    """L of a learner: λ_u, the weights of all terms but the clean one, grows linearly over the first steps.

    ramp: for which share of the steps; 0: it is there from the first step.
    """

    def __init__(self, learner: Learner, options: SemiSupervisedOptions, **more: Any) -> None:
        super().__init__(learner, options.hard_examples, steps=options.steps, **more)
        self.ramp = options.rule.ramp

    def present(self, step: int | None = None) -> dict[str, HardExample]:
        there = super().present(step)
        if step is None or self.steps is None or not self.ramp:
            return there
        share = min(1.0, step / self.steps / self.ramp)
        return {name: hard.but(weight=share * hard.weight) for name, hard in there.items()}


def _objective(
    task: Task,
    labelled: Labels,
    options: SemiSupervisedOptions,
    stream: Stream,
) -> Objective:
    assert task.fit.classes is not None, "a task for this has one label per image"
    classes = torch.full((len(task.fit),), -1)
    classes[labelled] = torch.from_numpy(task.fit.classes)[labelled]
    backbone = copy.deepcopy(task.backbone)
    setting = Setting(
        data_size=len(task.fit),
        batch_size=options.labelled_batch * (1 + options.rule.ratio),
        num_crops=1,
        branches=("main", *sorted(branches(options.hard_examples))),
        mean=backbone.network_config.mean,
        std=backbone.network_config.std,
        seed=task.seed,
    )
    rotates = options.rule.rotates
    outputs = task.num_classes + (RotationLearner.num_turns if rotates else 0)
    head = new_classifier(backbone.num_features, outputs, stream)
    given = (options.rule, backbone.network, head, classes, setting, options.ema)
    learner = (
        RotationLearner(*given, weight=options.unlabelled_weight) if rotates else Learner(*given)
    )
    learner = precisions.place(learner, task.device)
    return LearnersObjective(
        learner, options, autocast=lambda: precisions.autocast(task.precision, task.device)
    )
