"""Linear SVMs from k images per class, five draws. Presets `pcl`: the images drawn for all classes, with all their
labels; `goyal`: k positives and k · (C − 1) negatives for each class.

F25.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import pydantic

from hexa.data.sources.source import Labels
from hexa.evaluation import linear_svm
from hexa.evaluation.few_labels import Shots, affordable
from hexa.evaluation.protocol import Outcome, Protocol, Task
from hexa.evaluation.protocols.svm import (
    GOYAL_COSTS,
    SVMSettings,
    images_of,
    in_parallel,
    name_of_costs,
    name_of_settings,
    scored,
)
from hexa.runtime.random import Stream

Rows = Labels


class LowShotOptions(SVMSettings):
    """Options of the protocol `low-shot`."""

    shots: Shots = pydantic.Field(default=(1, 2, 4, 8, 16, 32, 64, 96), min_length=1)
    """k, positive images drawn for each class."""
    draws: int = pydantic.Field(default=5, gt=0)
    """Independent samples for each k."""
    sampling: Literal["pcl", "goyal"] = "pcl"
    """pcl: k images showing each class, the union with all its labels trains every class. goyal: k positives and
    k · (C − 1) negatives for each class apart."""


def draw_samples(
    labels: Labels,
    k: int,
    options: LowShotOptions,
    stream: Stream,
) -> list[Rows]:
    """The positions that each class is learnt from in one draw.

    PCL draws k images with label 1 for each class, one class after the other, and every class learns from all of them.
    Goyal draws for each class k positives and k (C - 1) negatives; no difficult images.
    """
    if options.sampling == "pcl":
        return [_drawn(labels.T == 1, [k] * labels.shape[1], stream)] * labels.shape[1]
    counts = [k, k * (labels.shape[1] - 1)]
    return [
        _drawn([column == 1, column == -1], counts, stream.child(number))
        for number, column in enumerate(labels.T)
    ]


def _drawn(masks: Iterable[Labels], counts: Iterable[int], stream: Stream) -> Rows:
    """Return positions drawn from each mask, at most its count, one mask after the other; repetitions are kept."""
    generator = np.random.default_rng(stream.integer())
    drawn = [
        generator.permutation(np.flatnonzero(mask))[:count]
        for mask, count in zip(masks, counts, strict=True)
    ]
    return np.concatenate(drawn)


def run(task: Task, options: LowShotOptions) -> Outcome:
    """Mean mAP over the draws for each k, and its standard deviation; test images are all there are.

    Of several costs the one with the best mean over the draws is reported, for each k. That is a choice by test
    images, as published; `details` tells which, and the note says so.
    """
    fit, test = images_of(task)
    counts = dict(zip(task.class_names, (fit.labels == 1).sum(0).tolist(), strict=True))
    shots, notes = affordable(
        options.shots, counts, "positives", "shots", insist="shots" in task.chosen
    )
    effective = {"shots": shots} if notes else {}
    stream = Stream(task.seed).child("low-shot", options.sampling)
    metrics = {}
    details = {}
    for k in shots:
        scores = np.empty((options.draws, task.num_classes, len(options.costs)))
        for draw in range(options.draws):
            samples = draw_samples(fit.labels, k, options, stream.child(k, draw))
            fits = []
            for rows, labels in zip(samples, fit.labels.T, strict=True):
                features = fit.features[rows]
                positive = labels[rows] == 1
                how = (options.max_iterations, task.seed)
                fits += [(features, positive, cost, *how) for cost in options.costs]
            label = f"fitting SVMs, {k} shots, draw {draw + 1}"
            solved = in_parallel(task, label, linear_svm.fit, fits)
            for number, (weights, _) in enumerate(solved):
                column, cost = divmod(number, len(options.costs))
                scores[draw, column, cost] = scored(weights, test, column, options)
        means = scores.mean(1)  # mAP [draws, costs]
        best = int(means.mean(0).argmax())
        of_draws = means[:, best]
        metrics[f"mAP@{k}"] = float(of_draws.mean())
        if options.draws > 1:
            metrics[f"mAP@{k}_std"] = float(of_draws.std(ddof=1))
        details[str(k)] = {"cost": options.costs[best], "draws": of_draws.tolist()}
    if len(options.costs) > 1:
        notes.append("the cost of each k was chosen by test images, as published")
    return Outcome(metrics, details, notes, effective)


def _identity(preset: str, options: LowShotOptions) -> str:
    shots = ",".join(map(str, options.shots))
    sampling = "" if options.sampling == preset else f"-{options.sampling}-sampling"
    drawn = f"k{shots}-{options.draws}-draws"
    costs = name_of_costs(options.costs)
    return f"{preset}{sampling}-{drawn}-{costs}-{name_of_settings(options)}"


PROTOCOL = Protocol(
    run=run,
    presets={
        "pcl": LowShotOptions(costs=(0.5,), difficult_in_test="negative"),
        "goyal": LowShotOptions(costs=GOYAL_COSTS, sampling="goyal"),
    },
    identity=_identity,
    labels="any",
)
