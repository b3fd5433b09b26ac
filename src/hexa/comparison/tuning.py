"""Fine-tuning as a further measure of a comparison: whole networks trained on the labels of the other folds."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from hexa.comparison.extraction import Extraction, images_per_second, seconds_to_read
from hexa.comparison.labelled import FOLDS, Array, Judge, Rows, labels_of
from hexa.comparison.verdict import Side
from hexa.data import Source
from hexa.data.sources.source import Subset
from hexa.evaluation.features import extract
from hexa.evaluation.protocol import Task
from hexa.evaluation.split import draw_classes
from hexa.evaluation.supervised import Plan, tuned
from hexa.evaluation.transforms import transform_of
from hexa.reporting.tables import format_duration
from hexa.runtime import precision as precisions
from hexa.runtime.progress import Progress
from hexa.runtime.random import Stream

#: The measure's name in tables.
MEASURE = "fine-tuning"
#: Ten passes in batches of 16 by Adamax, with a rate of 0.001 for the network and 0.01 for its new classifier, a tenth
#: of them from the fifth pass on, and a hundredth from the eighth.
PLAN = Plan(10, 16, torch.optim.Adamax, 0.001, 0.01, 0.1, (0.5, 0.8))
#: Forward passes that learning from an image costs, about; the fewest images; the slowest running statistics.
_LEARNING = 4
_FEWEST = 50
_MOMENTUM = 0.1


def drawn(
    sides: Sequence[Side], images: Source, how: Extraction, seconds: float
) -> tuple[Rows, str]:
    """Positions of as many images as can be fine-tuned on in the time, and a note on how many, and what they cost.

    A like share of every class; none if there is time for less than 50 images.
    """
    device = precisions.pick_device(how.device)
    labels = labels_of(images)
    each = sum(
        _LEARNING / images_per_second(side.backbone, device) + seconds_to_read(images)
        for side in sides
    )
    cost = each * PLAN.epochs * (FOLDS - 1)  # each image is learned from in all folds but one
    least = min(_FEWEST, len(labels))
    most = int(min(seconds / cost, len(labels)))
    if most < least:
        return np.empty(
            0, np.int64
        ), f"not fine-tuned: {least} images would take about {format_duration(least * cost)}"
    stream = Stream(how.seed).child("fine-tuned")
    rows = draw_classes(labels, most, stream) if most < len(labels) else np.arange(len(labels))
    told = f"on {len(rows):,} of {len(labels):,} images, about {format_duration(len(rows) * cost)}"
    return rows, f"{MEASURE} {told} by plan; it does not decide which is better"


def scored(
    side: Side, images: Source, how: Extraction, progress: Progress
) -> tuple[Array, Rows, Rows | None]:
    """[M], 100 or 0, whether each of the M judged images is classified correctly by a network tuned on the other folds;
    and int64 [M], their labels, and their groups, if any.

    Every side learns by `PLAN` from the same random crops and flips, with batch-norms whose running statistics follow
    by a tenth a step or faster.
    """
    device = precisions.pick_device(how.device)
    judge = Judge(labels_of(images), how.seed, images.groups(), splits=1)
    backbone = copy.deepcopy(side.backbone)
    right = np.zeros(len(images))
    for module in backbone.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.momentum = max(module.momentum, _MOMENTUM)
    for fold, (rest, part) in enumerate(zip(judge.rests, judge.parts, strict=True), 1):
        fit = Subset(images, rest)
        test = Subset(images, part)
        task = Task(
            backbone=backbone,
            fit=fit,
            test=test,
            class_names=[str(label) for label in range(int(judge.labels.max()) + 1)],
            transform=transform_of(backbone),
            device=device,
            precision=precisions.resolve(how.precision, device, backbone),
            num_workers=how.num_workers,
            seed=how.seed,
            report=progress,
        )
        stream = Stream(how.seed).child("fine-tuning", fold)
        label = f"{side.name}, {MEASURE} {fold} of {FOLDS}"
        _, network, head = tuned(task, fit, test, PLAN, stream, label, score_every=PLAN.epochs)
        with torch.no_grad():
            scores = head(extract(network, test, **task.extraction)[0].to(device))
        right[part] = 100 * (scores.argmax(1).cpu().numpy() == judge.labels[part])
    groups = None if judge.groups is None else judge.groups[judge.judged]
    return right[judge.judged], judge.labels[judge.judged], groups


def measured(
    sides: Sequence[Side], images: Source, how: Extraction, left: float, progress: Progress
) -> tuple[list[tuple[Array, Rows, Rows | None]], str]:
    """The result of `scored` for every side, in order, and a note on images and time.

    left: seconds; if they do not suffice for 50 images, nothing is fine-tuned and the list is empty.
    """
    rows, note = drawn(sides, images, how, left)
    progress(note.partition(" by plan")[0], 0, 1)
    return [scored(side, Subset(images, rows), how, progress) for side in sides if len(rows)], note
