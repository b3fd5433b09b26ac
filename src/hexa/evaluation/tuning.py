"""Training a backbone with a new classifier on labelled images, for the protocols that do not freeze it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.data import Source
from hexa.evaluation.adamax import new_classifier
from hexa.evaluation.augmented import AugmentedImages
from hexa.evaluation.features import extract
from hexa.evaluation.protocol import Task, topk_accuracy
from hexa.nn.pretrained import Backbone
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa.runtime.turns import turns

Curve = list[dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """How long, with what, and how fast. The rates are multiplied by `factor` from each share of the epochs on."""

    epochs: int
    batch_size: int
    optimizer: Literal["sgd", "adamax"]
    trunk_rate: float
    head_rate: float
    factor: float
    decay_at: tuple[float, ...]
    weight_decay: float = 0.0

    def share_of_rate(self, epoch: int) -> float:
        """What the rates are multiplied by in an epoch, 0 … epochs − 1."""
        return float(self.factor ** sum(epoch >= round(share * self.epochs) for share in self.decay_at))


@dataclass(frozen=True)
class Tuned:
    """What training did."""

    curve: Curve
    """[{"epoch", "top1", "top5"}, …], the last epoch at its end."""
    notes: list[str]
    batch_size: int
    """As asked for, or all images if there are fewer."""


def tune(task: Task, fit: Source, test: Source, plan: Plan, stream: Stream, label: str, score_every: int = 1) -> Tuned:
    """Train a copy of the task's backbone and a linear classifier on `fit`; accuracy on `test` while it learns.

    Everything learns, batch-norms are in training mode, cross-entropy; SGD has momentum 0.9. Images come in random
    crops and flips, test images as evaluation sees them.
    """
    backbone = copy.deepcopy(task.backbone).to(task.device).to(memory_format=torch.channels_last)
    head = new_classifier(backbone.num_features, task.num_classes, stream).to(task.device)
    optimizer = _optimizer(backbone, head, plan)
    start = [group["lr"] for group in optimizer.param_groups]
    images_of = AugmentedImages(task, fit, plan.batch_size, stream.child("views"), smallest=2)
    total = plan.epochs * images_of.steps
    images_of.notes.extend(slow_statistics(backbone, total))
    curve: Curve = []
    try:
        with turns(task.device) as offer_cores:
            for epoch in range(plan.epochs):
                for group, rate in zip(optimizer.param_groups, start, strict=True):
                    group["lr"] = rate * plan.share_of_rate(epoch)
                backbone.train()
                for step, (images, labels) in enumerate(images_of.epoch(epoch), epoch * images_of.steps + 1):
                    with precisions.autocast(task.precision, task.device):
                        features = backbone(images.contiguous(memory_format=torch.channels_last)).float()
                    optimizer.zero_grad()
                    F.cross_entropy(head(features), labels).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    offer_cores()
                    task.report(label, step, total)
                if (epoch + 1) % score_every == 0 or epoch + 1 == plan.epochs:
                    curve.append({"epoch": epoch + 1, **_score(task, backbone, head, test)})
    finally:
        images_of.close()
    return Tuned(curve, images_of.notes, images_of.batch_size)


def slow_statistics(network: nn.Module, steps: int) -> list[str]:
    """A note on batch-norms whose running statistics hardly follow in so few steps, as networks from TensorFlow have.

    Of those before, a share (1 − momentum)^steps remains.
    """
    norms = (module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    slowest = min((norm.momentum for norm in norms if norm.momentum is not None), default=1.0)
    remains = (1 - slowest) ** steps
    if slowest >= 0.1 or remains < 0.05:
        return []
    return [
        f"batch-norm statistics move by {100 * slowest:.2g} % a step: after {steps} steps {100 * remains:.0f} % of "
        "those before remain, and scores may be far too low; train longer, or with a momentum of 0.1"
    ]


def _optimizer(backbone: nn.Module, head: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in backbone.parameters() if p.requires_grad], "lr": plan.trunk_rate},
        {"params": list(head.parameters()), "lr": plan.head_rate},
    ]
    if plan.optimizer == "adamax":
        return torch.optim.Adamax(groups, weight_decay=plan.weight_decay)
    return torch.optim.SGD(groups, momentum=0.9, weight_decay=plan.weight_decay)


@torch.no_grad()
def _score(task: Task, backbone: Backbone, head: nn.Module, test: Source) -> dict[str, float]:
    features, labels, _ = extract(
        backbone, test, task.transform, task.extraction_batch, task.device, task.precision, task.num_workers
    )
    assert labels is not None
    scores: Tensor = head(features.to(task.device))
    return topk_accuracy(scores.cpu(), labels)


def best_and_last(curve: Curve) -> dict[str, float]:
    """top1 and top5 of the epoch with the best top1, as published codes report, and *_last of the last epoch (D32)."""
    best, last = max(curve, key=lambda point: point["top1"]), curve[-1]
    found = {name: value for name, value in best.items() if name != "epoch"}
    return found | {f"{name}_last": value for name, value in last.items() if name != "epoch"}
