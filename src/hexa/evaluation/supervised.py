"""Training on labelled images in random crops and flips: of a classifier, or of a whole network with one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from hexa.config import some
from hexa.data import Source
from hexa.data.loading.loaders import PretrainLoader
from hexa.data.loading.workers import epoch_order
from hexa.data.views.making import Views, ViewsConfig
from hexa.evaluation.features import extract
from hexa.evaluation.protocol import Curve, Outcome, Task, accuracies, best_and_last
from hexa.runtime import precision as precisions, processes
from hexa.runtime.processes import Value, from_main, in_step
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone


def new_classifier(
    num_features: int,
    num_classes: int,
    stream: Stream,
) -> nn.Linear:
    """One linear layer, weight N(0, 0.01), bias 0."""
    classifier = nn.Linear(num_features, num_classes)
    with torch.no_grad():
        classifier.weight.normal_(0, 0.01, generator=stream.child("weights").generator())
        classifier.bias.zero_()
    return classifier


class AugmentedImages:
    """Random resized crops (0.08–1) and flips of all images of a labelled source once an epoch, in a drawn order.

    Several processes get a share of each batch, with the crops that one process would make. batch_size: as asked for,
    or all images if there are fewer; a multiple of the number of processes. steps: batches an epoch; like the published loaders, the
    last may be smaller, but where workers decode, or below `smallest` images, it is left out, with other images every
    time (`notes`).
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        batch_size: int,
        stream: Stream,
        smallest: int = 1,
    ) -> None:
        assert source.classes is not None, "a task for this has one label per image"
        views = Views(
            ViewsConfig.model_validate({"recipe": "crop-flip", "size": task.backbone.image_size})
        )
        world = processes.world_size()
        self.batch_size = max(world, min(batch_size, len(source)) // world * world)
        self._labels = torch.from_numpy(source.classes).to(task.device)
        self.loader = PretrainLoader(
            source, views, self.batch_size, stream, task.device, task.num_workers
        )
        rest = len(source) % self.batch_size
        self._keeps_rest = self.loader.resident and rest >= max(1, smallest)
        self.steps = self.loader.steps_per_epoch + self._keeps_rest
        self.notes: list[str] = []
        if self.batch_size != batch_size:
            self.notes.append(
                f"batch_size {batch_size} became {self.batch_size}: at most the "
                f"{len(source)} labelled images, a multiple of the processes"
            )
        if rest and not self._keeps_rest:
            self.notes.append(
                f"each epoch leaves out {rest} images, different ones every time, to keep batches whole"
            )

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """(images float [b, 3, S, S] in [0, 1], labels int64 [b], B) of every batch, on the task's device.

        b: the images of this process, perhaps none of a last batch. B: those of all processes.
        """
        for batch in self.loader.epoch(epoch):
            yield batch.crops[0], self._labels[batch.index], self.batch_size
        if self._keeps_rest:
            loader = self.loader
            order = epoch_order(loader.stream, epoch, len(loader.source))
            count = len(order) % self.batch_size
            rank = processes.rank()
            world = processes.world_size()
            rows = slice(rank * count // world, (rank + 1) * count // world)
            images, index = loader.stored(order, loader.steps_per_epoch, rows)
            crops = loader.views(images, loader.stream.child("last batch", epoch), rows)
            yield crops[0], self._labels[index], count


def learn(
    task: Task,
    images_of: AugmentedImages,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    factor: Callable[[int], float],
    scores: Callable[[Tensor], Tensor],
    score: Callable[[], dict[str, float]],
    score_every: int,
    label: str,
) -> Outcome:
    """Minimise the cross-entropy of `scores` of images [B, 3, S, S]; the accuracy by `score` while it learns.

    Several processes call it alike, each with its share of every batch, and learn what one would. The main one scores.
    factor: the epoch, 0 … epochs − 1 -> what the optimizer's rates are multiplied by. score_every: epochs between two
    scorings; the last epoch is always scored.
    """
    curve = Curve()
    schedule = LambdaLR(optimizer, factor)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    world = processes.world_size()
    step = 0
    with closing(images_of.loader):
        for epoch in range(1, epochs + 1):
            for images, labels, count in _in_step(images_of.epoch(epoch - 1)):
                step += 1
                views = images.contiguous(memory_format=torch.channels_last)
                optimizer.zero_grad()
                # the mean over the whole batch, once gradients are averaged over the processes
                loss = F.cross_entropy(scores(views), labels, reduction="sum") * (world / count)
                loss.backward()  # type: ignore[no-untyped-call]
                processes.average([one.grad for one in parameters if one.grad is not None])
                optimizer.step()
                task.report(label, step, epochs * images_of.steps)
            schedule.step()
            if epoch % score_every == 0 or epoch == epochs:
                scored = score() if world == 1 else from_main(score)
                curve.append({"epoch": epoch, **scored})
    lost = images_of.loader.problems
    if lost:
        images_of.notes.append(
            f"unreadable training images, replaced by others: {some(lost, '; ')}"
        )
    effective = {"batch_size": images_of.batch_size}
    return Outcome(best_and_last(curve), {"curve": curve}, images_of.notes, effective)


def _in_step(batches: Iterator[Value]) -> Iterator[Value]:
    """The batches. If one of several processes cannot read its share, all of them raise its UserError."""
    if processes.world_size() == 1:
        yield from batches
        return
    while (batch := in_step(lambda: next(batches, None))) is not None:
        yield batch


@torch.no_grad()
def accuracy(
    task: Task,
    backbone: Backbone,
    head: nn.Module,
    test: Source,
) -> dict[str, float]:
    """Accuracies of a network and its classifier on labelled images, as evaluation sees them."""
    features, positions = extract(backbone, test, **task.extraction)
    if test is task.test:
        task.keep("test", test, positions.numpy())
    assert test.labels is not None
    labels = torch.from_numpy(test.labels)[positions]
    return accuracies(head(features.to(task.device))[:, : task.num_classes].cpu(), labels)


def decayed(
    factor: float,
    decay_at: tuple[float, ...],
    epoch: int,
    epochs: int,
) -> float:
    """The factor of the rates in an epoch, 0 … epochs − 1: `factor` once more from each share of the epochs on."""
    return float(factor ** sum(epoch >= round(share * epochs) for share in decay_at))


class Plan(NamedTuple):
    """Settings of the training of a network and its classifier."""

    epochs: int
    batch_size: int
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    """Groups of parameters, each with its rate -> optimizer."""
    trunk_rate: float
    head_rate: float
    factor: float
    """Factor of the rates from each of `decay_at` on."""
    decay_at: tuple[float, ...]
    """Shares of the epochs."""


def tuned(
    task: Task,
    fit: Source,
    test: Source,
    plan: Plan,
    stream: Stream,
    label: str,
    score_every: int = 1,
) -> Outcome:
    """Train a copy of the task's backbone and a linear classifier on `fit`; accuracy on `test` while it learns.

    Everything learns, batch-norms are in training mode, cross-entropy. Images come in random crops and flips, test
    images as evaluation sees them.
    """
    backbone = precisions.place(copy.deepcopy(task.backbone), task.device)
    backbone.requires_grad_()
    head = new_classifier(backbone.num_features, task.num_classes, stream).to(task.device)
    groups = [
        {"params": list(backbone.parameters()), "lr": plan.trunk_rate},
        {"params": list(head.parameters()), "lr": plan.head_rate},
    ]
    images_of = AugmentedImages(task, fit, plan.batch_size, stream.child("views"), smallest=2)

    def scores(images: Tensor) -> Tensor:
        with precisions.autocast(task.precision, task.device):
            features = backbone.train()(images).float()
        return head(features)  # type: ignore[no-any-return]

    return learn(
        task,
        images_of,
        plan.optimizer(groups),
        plan.epochs,
        factor=partial(decayed, plan.factor, plan.decay_at, epochs=plan.epochs),
        scores=scores,
        score=partial(accuracy, task, backbone, head, test),
        score_every=score_every,
        label=label,
    )
