"""Linear classification on a frozen backbone, with augmentation, by both published recipes (REFERENCE §7.1, §7.2)."""

from __future__ import annotations

import math
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import Config
from hexa.data.loaders import PretrainLoader, evaluation_batches
from hexa.data.views import Views, ViewsConfig
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


def run(task: Task, options: LinearOptions) -> Outcome:
    """One linear layer, weight N(0, 0.01), bias 0, cross-entropy, SGD; random resized crops (0.08–1) and flips.

    The backbone stays in eval mode, and that none of its tensors changed is checked after the first epoch. Every scored
    epoch counts: top1 and top5 are those of the best epoch (as both codes report), *_last those of the last (D32).
    """
    backbone, device = task.backbone.eval().to(task.device), task.device
    stream = Stream(task.seed).child("linear")
    views = Views(ViewsConfig.model_validate({"recipe": "crop-flip", "size": backbone.image_size}))
    size = min(options.batch_size, len(task.fit))
    loader = PretrainLoader(task.fit, views, size, stream.child("views"), device, task.num_workers)
    assert task.fit.labels is not None
    labels = torch.from_numpy(task.fit.labels).to(device)
    classifier = _classifier(backbone.num_features, task.num_classes, stream).to(device)
    optimizer = torch.optim.SGD(
        classifier.parameters(), options.learning_rate, options.momentum, weight_decay=options.weight_decay
    )
    before = backbone.content_hash()
    curve: list[dict[str, float]] = []
    try:
        for epoch in range(options.epochs):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(options, epoch)
            for batch in loader.epoch(epoch):
                features = _features(task, batch.crops[0])
                optimizer.zero_grad()
                F.cross_entropy(classifier(features), labels[batch.index]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if epoch == 0 and backbone.content_hash() != before:
                raise AssertionError("the backbone changed while a classifier was trained on it")
            if (epoch + 1) % options.score_every == 0 or epoch + 1 == options.epochs:
                curve.append({"epoch": epoch + 1, **score(task, backbone, classifier)})
            task.report("training the classifier", epoch + 1, options.epochs)
    finally:
        loader.close()
    best, last = max(curve, key=lambda point: point["top1"]), curve[-1]
    metrics = {name: value for name, value in best.items() if name != "epoch"}
    metrics |= {f"{name}_last": value for name, value in last.items() if name != "epoch"}
    effective = {} if size == options.batch_size else {"batch_size": size}
    return Outcome(metrics, {"best_epoch": best["epoch"], "curve": curve}, effective=effective)


def _classifier(num_features: int, num_classes: int, stream: Stream) -> nn.Linear:
    classifier = nn.Linear(num_features, num_classes)
    with torch.no_grad():
        classifier.weight.normal_(0, 0.01, generator=stream.child("weights").generator())
        classifier.bias.zero_()
    return classifier


@torch.no_grad()
def _features(task: Task, images: Tensor) -> Tensor:
    with precisions.autocast(task.precision, task.device):
        return task.backbone(images.contiguous(memory_format=torch.channels_last)).float()  # type: ignore[no-any-return]


@torch.no_grad()
def score(task: Task, backbone: Backbone, classifier: nn.Linear) -> dict[str, float]:
    """Accuracy on the test images, evaluation transform."""
    scores, wanted = [], []
    for images, labels, _ in evaluation_batches(
        task.test, task.transform, task.extraction_batch, task.device, task.num_workers
    ):
        assert labels is not None
        scores.append(classifier(_features(task, images)).cpu())
        wanted.append(labels.cpu())
    return topk_accuracy(torch.cat(scores), torch.cat(wanted))


PROTOCOL = Protocol(
    run=run,
    presets={
        "moco": LinearOptions(),
        "swav": LinearOptions(learning_rate=0.3, schedule="cosine", weight_decay=1e-6),
    },
    identity=lambda preset, options: f"{preset}-{options.epochs}ep-lr{options.learning_rate:g}",
)
