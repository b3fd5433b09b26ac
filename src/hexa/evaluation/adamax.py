"""A linear classifier on features that are extracted once, by Adamax, its rate chosen on held-out images (CIFAR)."""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import Config
from hexa.evaluation.features import extract_pair
from hexa.evaluation.protocol import Outcome, Task, all_positive, listed, topk_accuracy
from hexa.evaluation.split import stratified_part
from hexa.runtime.random import Stream


class AdamaxOptions(Config):
    """Options of the protocol `linear`, preset cifar (REFERENCE §7.6)."""

    epochs: int = pydantic.Field(default=20, gt=0)
    """Passes over the training images; the rate is ×0.1 at 35 % and 70 % of them (7 and 14 of 20)."""
    batch_size: int = pydantic.Field(default=256, gt=0)
    """Images a step; the last batch of an epoch may be smaller."""
    learning_rates: tuple[float, ...] = pydantic.Field(default=(0.1, 0.01, 0.001), min_length=1)
    """Of Adamax; the one that is best on held-out training images is taken."""
    selection: float = pydantic.Field(default=0.1, gt=0, lt=1)
    """Share of the training images held out for that."""

    _listed = pydantic.field_validator("learning_rates", mode="before")(listed)

    _positive = pydantic.field_validator("learning_rates")(all_positive)


def share_of_rate(epoch: int, epochs: int) -> float:
    """1, 0.1 from 35 % of the epochs on, 0.01 from 70 % on: epochs 7 and 14 of 20."""
    return float(0.1 ** sum(epoch >= round(part * epochs) for part in (0.35, 0.7)))


def new_classifier(num_features: int, num_classes: int, stream: Stream) -> nn.Linear:
    """One linear layer, weight N(0, 0.01), bias 0."""
    classifier = nn.Linear(num_features, num_classes)
    with torch.no_grad():
        classifier.weight.normal_(0, 0.01, generator=stream.child("weights").generator())
        classifier.bias.zero_()
    return classifier


def fit(
    features: Tensor, labels: Tensor, num_classes: int, rate: float, options: AdamaxOptions, seed: int
) -> nn.Linear:
    """The classifier after all epochs, cross-entropy, no weight decay. features: [N, D], labels: int64 [N]."""
    stream = Stream(seed).child("adamax")
    classifier = new_classifier(features.shape[1], num_classes, stream).to(features.device)
    optimizer = torch.optim.Adamax(classifier.parameters(), rate)
    for epoch in range(options.epochs):
        for group in optimizer.param_groups:
            group["lr"] = rate * share_of_rate(epoch, options.epochs)
        order = torch.randperm(len(features), generator=stream.child("order", epoch).generator()).to(features.device)
        for rows in torch.split(order, options.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(classifier(features[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return classifier


@torch.no_grad()
def accuracy(classifier: nn.Linear, features: Tensor, labels: Tensor) -> dict[str, float]:
    """{"top1": …, "top5": …} in percent."""
    return topk_accuracy(classifier(features).cpu(), labels.cpu())


def run(task: Task, options: AdamaxOptions) -> Outcome:
    """Accuracy with the rate chosen on held-out training images, then fitted to all of them: top1, top5.

    top1_best_rate is the best of all rates by test accuracy, as the paper probably has it: optimistic. No augmentation,
    so features are extracted once.
    """
    data = [part.to(task.device) for part in extract_pair(task)]
    x, y, test_x, test_y = data
    held = stratified_part(y.cpu().numpy(), options.selection, Stream(task.seed).child("selection"))
    kept, out = (torch.from_numpy(mask.nonzero()[0]).to(task.device) for mask in (~held, held))
    rates, found, chosen_by = options.learning_rates, [], []
    total = len(rates) * (2 if len(rates) > 1 else 1)
    for number, rate in enumerate(rates):
        found.append(accuracy(fit(x, y, task.num_classes, rate, options, task.seed), test_x, test_y))
        task.report("fitting classifiers", number + 1, total)
    for number, rate in enumerate(rates if len(rates) > 1 else ()):
        classifier = fit(x[kept], y[kept], task.num_classes, rate, options, task.seed)
        chosen_by.append(accuracy(classifier, x[out], y[out])["top1"])
        task.report("fitting classifiers", len(rates) + number + 1, total)
    best = max(range(len(chosen_by)), key=chosen_by.__getitem__, default=0)
    metrics = {**found[best], "top1_best_rate": max(one["top1"] for one in found)}
    details = {
        "learning_rate": rates[best],
        "held_out": dict(zip(map(str, rates), chosen_by, strict=False)),
        "test": {str(rate): one["top1"] for rate, one in zip(rates, found, strict=True)},
    }
    return Outcome(metrics, details)
