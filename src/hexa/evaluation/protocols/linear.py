"""A linear classifier on the frozen backbone. Presets `moco` and `swav`: 100 epochs with augmentation, the best epoch
and the last are both reported; `moco-ablation` and `swav-ablation`: one epoch of it; `cifar`: Adamax on fixed features,
the rate chosen on held-out training images (`top1`; `top1_best_rate` is the best of all rates on the test images, as
some papers report).

F23.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from hexa.config import Config
from hexa.evaluation.features import for_inference
from hexa.evaluation.protocol import Outcome, Positive, Protocol, Task, accuracies, named_changes
from hexa.evaluation.split import held_part
from hexa.evaluation.supervised import AugmentedImages, decayed, learn, new_classifier
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream


class LinearOptions(Config):
    """Options of the protocol `linear`. The defaults are MoCo's."""

    epochs: int = pydantic.Field(default=100, gt=0)
    """Passes over the training images."""
    batch_size: int = pydantic.Field(default=256, gt=0)
    """Images per step; more than there are means all of them."""
    learning_rate: float = pydantic.Field(default=30.0, gt=0)
    """Initial learning rate."""
    schedule: Literal["steps", "cosine"] = "steps"
    """steps: ×0.1 at 60 % and 80 % of the epochs (60 and 80 of 100); cosine: to 0; either moves once an epoch."""
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD, without Nesterov."""
    weight_decay: float = pydantic.Field(default=0.0, ge=0)
    """Weight decay of the classifier (D31)."""
    score_every: int = pydantic.Field(default=1, gt=0)
    """Epochs between two scorings; best is the best of them."""


class AdamaxOptions(Config):
    """Options of the protocol `linear`, preset cifar (F23), and of `fine-tune`."""

    epochs: int = pydantic.Field(default=20, gt=0)
    """Passes over the training images; the rate is ×0.1 at 35 % and 70 % of them (7 and 14 of 20)."""
    batch_size: int = pydantic.Field(default=256, gt=0)
    """Images per step; the last batch of an epoch may be smaller."""
    learning_rates: Positive[float] = pydantic.Field(default=(0.1, 0.01, 0.001), min_length=1)
    """Learning rates of Adamax; the best one on held-out training images is taken."""
    selection: float = pydantic.Field(default=0.1, gt=0, lt=1)
    """Share of the training images held out for that."""


def run(task: Task, options: LinearOptions | AdamaxOptions) -> Outcome:
    """Train and score the classifier that the options describe."""
    if isinstance(options, AdamaxOptions):
        return on_fixed_features(task, options)
    return train(task, options)


# -- on augmented images ---------------------------------------------------------------------------------------------


def train(task: Task, options: LinearOptions) -> Outcome:
    """One linear layer, weight N(0, 0.01), bias 0, cross-entropy, SGD; random resized crops (0.08–1) and flips.

    The backbone is frozen and in eval mode, so the test images have one feature each, extracted once. Every scored
    epoch counts: top1 and top5 are those of the best epoch (as both codes report), *_last those of the last (D32).
    """
    stream = Stream(task.seed).child("linear")
    test, test_labels = task.features("test")
    test = test.to(task.device)
    num_features = task.backbone.num_features
    backbone = for_inference(task.backbone, task.device)
    classifier = new_classifier(num_features, task.num_classes, stream).to(task.device)
    optimizer = torch.optim.SGD(
        classifier.parameters(),
        options.learning_rate,
        options.momentum,
        weight_decay=options.weight_decay,
    )

    def scores(images: Tensor) -> Tensor:
        with torch.no_grad(), precisions.autocast(task.precision, task.device):
            features = backbone(images).float()
        return classifier(features)  # type: ignore[no-any-return]

    return learn(
        task,
        AugmentedImages(task, task.fit, options.batch_size, stream.child("views")),
        optimizer,
        options.epochs,
        factor=partial(factor, options),
        scores=scores,
        score=lambda: accuracy(classifier, test, test_labels),
        score_every=options.score_every,
        label="training the classifier",
    )


def factor(options: LinearOptions, epoch: int) -> float:
    """Factor of the rate in an epoch, 0 … epochs − 1: ×0.1 at 60 % and 80 %, or ½·(1 + cos(π·epoch/epochs))."""
    if options.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / options.epochs))
    return decayed(0.1, (0.6, 0.8), epoch, options.epochs)


@torch.no_grad()
def accuracy(
    classifier: nn.Linear,
    features: Tensor,
    labels: Tensor,
) -> dict[str, float]:
    """Accuracies of a classifier of features, in percent."""
    return accuracies(classifier(features).cpu(), labels.cpu())


# -- on features that are extracted once -----------------------------------------------------------------------------


def on_fixed_features(task: Task, options: AdamaxOptions) -> Outcome:
    """Accuracy with the rate chosen on held-out training images, then fitted to all of them: top1, top5.

    top1_best_rate is the best of all rates by test accuracy, as the paper probably has it: optimistic. No augmentation,
    so features are extracted once.
    """
    x, y, test_x, test_y = (part.to(task.device) for part in task.both_features())
    rates = options.learning_rates
    stream = Stream(task.seed).child("selection")
    tested = {}
    held_out = {}
    groups = task.fit_groups()
    if len(rates) > 1:
        held = torch.from_numpy(held_part(y.cpu().numpy(), options.selection, stream, groups))
    for number, rate in enumerate(rates):
        task.report("fitting classifiers", number, len(rates))
        how = (task.num_classes, rate, options, task.seed)
        tested[rate] = accuracy(fit_by_adamax(x, y, *how), test_x, test_y)
        if len(rates) > 1:
            classifier = fit_by_adamax(x[~held], y[~held], *how)
            held_out[rate] = accuracy(classifier, x[held], y[held])["top1"]
    task.report("fitting classifiers", len(rates), len(rates))
    chosen = max(rates, key=lambda rate: held_out.get(rate, 0.0))
    details = {
        "learning_rate": chosen,
        "held_out": {str(rate): top1 for rate, top1 in held_out.items()},
        "test": {str(rate): found["top1"] for rate, found in tested.items()},
    }
    best = max(found["top1"] for found in tested.values())
    grouped = groups is not None and len(rates) > 1
    return Outcome({**tested[chosen], "top1_best_rate": best}, details, grouped=grouped)


def fit_by_adamax(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    rate: float,
    options: AdamaxOptions,
    seed: int,
) -> nn.Linear:
    """The classifier after all epochs, cross-entropy, no weight decay. features: [N, D], labels: int64 [N]."""
    stream = Stream(seed).child("adamax")
    classifier = new_classifier(features.shape[1], num_classes, stream).to(features.device)
    optimizer = torch.optim.Adamax(classifier.parameters(), rate)
    schedule = LambdaLR(optimizer, lambda epoch: decayed(0.1, (0.35, 0.7), epoch, options.epochs))
    for epoch in range(options.epochs):
        generator = stream.child("order", epoch).generator()
        order = torch.randperm(len(features), generator=generator).to(features.device)
        for rows in torch.split(order, options.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(classifier(features[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    return classifier


def identity(
    presets: Mapping[str, Config],
    preset: str,
    options: LinearOptions | AdamaxOptions,
) -> str:
    """Epochs and rate always; whatever else is not as published, by its name."""
    changed = named_changes(presets[preset], options, ("epochs", "learning_rate", "learning_rates"))
    if isinstance(options, AdamaxOptions):
        rates = ",".join(f"{rate:g}" for rate in options.learning_rates)
    else:
        rates = f"{options.learning_rate:g}"
    return f"{preset}-{options.epochs}ep-lr{rates}{changed}"


PRESETS = {
    "moco": LinearOptions(),
    "swav": LinearOptions(learning_rate=0.3, schedule="cosine", weight_decay=1e-6),
    # one epoch is too short for a schedule: the rates stay (D30)
    "moco-ablation": LinearOptions(epochs=1),
    "swav-ablation": LinearOptions(
        epochs=1, learning_rate=0.3, schedule="cosine", weight_decay=1e-6
    ),
    "cifar": AdamaxOptions(),
}
PROTOCOL = Protocol(
    run=run,
    presets=PRESETS,
    identity=partial(identity, PRESETS),
    extracts=lambda options: ("fit", "test") if isinstance(options, AdamaxOptions) else ("test",),
    together=lambda options: isinstance(options, LinearOptions),
)
