"""Linear classification on a frozen backbone by the published recipes (REFERENCE §7.1, §7.2, §7.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import pydantic
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.config import Config
from hexa.evaluation import adamax
from hexa.evaluation.adamax import AdamaxOptions, new_classifier
from hexa.evaluation.augmented import AugmentedImages
from hexa.evaluation.features import extract_part
from hexa.evaluation.protocol import Outcome, Protocol, Task, topk_accuracy
from hexa.nn.pretrained import Backbone
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream


class LinearOptions(Config):
    """Options of the protocol `linear`. The defaults are MoCo's."""

    epochs: int = pydantic.Field(default=100, gt=0)
    """Passes over the training images."""
    batch_size: int = pydantic.Field(default=256, gt=0)
    """Images a step; more than there are means all of them."""
    learning_rate: float = pydantic.Field(default=30.0, gt=0)
    """The rate at the start."""
    schedule: Literal["steps", "cosine"] = "steps"
    """steps: ×0.1 at 60 % and 80 % of the epochs (60 and 80 of 100); cosine: to 0; either moves once an epoch."""
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Of SGD, without Nesterov."""
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    """Of the classifier (D31)."""
    score_every: int = pydantic.Field(default=1, gt=0)
    """Epochs between two scorings; best is the best of them."""


def learning_rate(options: LinearOptions, epoch: int) -> float:
    """The rate of an epoch, 0 … epochs − 1: ×0.1 at 60 % and 80 %, or ½·(1 + cos(π·epoch/epochs))."""
    if options.schedule == "cosine":
        return options.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / options.epochs))
    return options.learning_rate * 0.1 ** sum(epoch >= share * options.epochs for share in (0.6, 0.8))


def run(task: Task, options: LinearOptions | AdamaxOptions) -> Outcome:
    """By the recipe that the options belong to."""
    return adamax.run(task, options) if isinstance(options, AdamaxOptions) else train(task, options)


def train(task: Task, options: LinearOptions) -> Outcome:
    """One linear layer, weight N(0, 0.01), bias 0, cross-entropy, SGD; random resized crops (0.08–1) and flips.

    The backbone is frozen and in eval mode, and that none of its tensors changed is checked after the first epoch and
    the last. So the test images have one feature each, extracted once. Every scored epoch counts: top1 and top5 are
    those of the best epoch (as both codes report), *_last those of the last (D32).
    """
    stream = Stream(task.seed).child("linear")
    before = {name: value.cpu().clone() for name, value in task.backbone.state_dict().items()}
    test, test_labels = extract_part(task, task.test)  # also moves the backbone to the device, in eval mode
    test = test.to(task.device)
    classifier = new_classifier(task.backbone.num_features, task.num_classes, stream).to(task.device)
    optimizer = torch.optim.SGD(
        classifier.parameters(), options.learning_rate, options.momentum, weight_decay=options.weight_decay
    )
    images_of = AugmentedImages(task, task.fit, options.batch_size, stream.child("views"))
    total = options.epochs * images_of.steps
    curve: list[dict[str, float]] = []
    try:
        for epoch in range(options.epochs):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(options, epoch)
            for step, (images, labels) in enumerate(images_of.epoch(epoch), epoch * images_of.steps + 1):
                features = _features(task, images)
                optimizer.zero_grad()
                F.cross_entropy(classifier(features), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                task.report("training the classifier", step, total)
            last = epoch + 1 == options.epochs
            if epoch == 0 or last:
                _check_frozen(task.backbone, before)
            if (epoch + 1) % options.score_every == 0 or last:
                with torch.no_grad():
                    scores = classifier(test).cpu()
                curve.append({"epoch": epoch + 1, **topk_accuracy(scores, test_labels)})
    finally:
        images_of.close()
    best, final = max(curve, key=lambda point: point["top1"]), curve[-1]
    metrics = {name: value for name, value in best.items() if name != "epoch"}
    metrics |= {f"{name}_last": value for name, value in final.items() if name != "epoch"}
    details = {"best_epoch": best["epoch"], "curve": curve}
    return Outcome(metrics, details, images_of.notes, {"batch_size": images_of.batch_size})


def _check_frozen(backbone: Backbone, before: Mapping[str, Tensor]) -> None:
    """Compare every tensor, batch-norm statistics included, as the published code does (REFERENCE §2.5, §10.18)."""
    changed = [name for name, value in backbone.state_dict().items() if not torch.equal(value.cpu(), before[name])]
    if changed:
        raise RuntimeError(f"the backbone changed while a classifier was trained on it: {', '.join(changed[:8])}")


@torch.no_grad()
def _features(task: Task, images: Tensor) -> Tensor:
    with precisions.autocast(task.precision, task.device):
        return task.backbone(images.contiguous(memory_format=torch.channels_last)).float()  # type: ignore[no-any-return]


def _identity(preset: str, options: LinearOptions | AdamaxOptions) -> str:
    """Epochs and rate always; whatever else is not as published, by its name."""
    published = PROTOCOL.presets[preset].model_dump()
    others = {k: v for k, v in options.model_dump().items() if k not in ("epochs", "learning_rate", "learning_rates")}
    changed = "".join(f"-{name}={value}" for name, value in others.items() if value != published[name])
    rates = options.learning_rates if isinstance(options, AdamaxOptions) else (options.learning_rate,)
    return f"{preset}-{options.epochs}ep-lr{','.join(f'{rate:g}' for rate in rates)}{changed}"


PROTOCOL = Protocol(
    run=run,
    presets={
        "moco": LinearOptions(),
        "swav": LinearOptions(learning_rate=0.3, schedule="cosine", weight_decay=1e-6),
        # one epoch is too short for a schedule: the rates stay (D30)
        "moco-ablation": LinearOptions(epochs=1),
        "swav-ablation": LinearOptions(epochs=1, learning_rate=0.3, schedule="cosine", weight_decay=1e-6),
        "cifar": AdamaxOptions(),
    },
    identity=_identity,
    fixed=lambda options: isinstance(options, AdamaxOptions),
)
