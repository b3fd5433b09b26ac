"""One linear SVM per class on frozen features, mean average precision (VOC07). Presets `goyal`: the cost is chosen by
three folds, difficult images are not scored; `pcl`: C = 0.5, difficult images are negatives.

F24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pydantic
from joblib import Parallel, cpu_count, delayed
from torch import Tensor

from hexa.config import Config, UserError, some
from hexa.data.sources.source import Labels
from hexa.evaluation import linear_svm
from hexa.evaluation.average_precision import interpolated_area, precision_recall
from hexa.evaluation.linear_svm import Array
from hexa.evaluation.protocol import Outcome, Positive, Protocol, Task, named_changes

#: Goyal et al. (ICCV 2019): 1e-7 … 1e2 in their documentation, and the powers of ½ their code adds.
GOYAL_COSTS = tuple(sorted({*(10.0**n for n in range(-7, 3)), *(0.5**n for n in range(4, 20))}))


class SVMSettings(Config):
    """Fields of every protocol of SVMs."""

    costs: Positive[float] = pydantic.Field(default=GOYAL_COSTS, min_length=1)
    """C, the weight of the hinge losses; of several, one is chosen."""
    difficult_in_test: Literal["ignored", "negative"] = "ignored"
    """Images that show a class only as difficult objects: left out of its score (Goyal), or negatives (PCL)."""
    max_iterations: int = pydantic.Field(default=2000, gt=0)
    """LIBLINEAR's limit."""


class SVMOptions(SVMSettings):
    """Options of the protocol `svm`."""

    folds: int = pydantic.Field(default=3, ge=2)
    """Parts of the training images for the choice of a cost, class by class."""


class Images(NamedTuple):
    """Features [N, D] fp64 of unit rows in any basis, and labels int64 [N, C]: 1 present, −1 absent, 0 difficult."""

    features: Array
    labels: Labels


def images_of(task: Task) -> tuple[Images, Images]:
    """Both parts of a task, with a column of labels for each class also where an image has one label."""
    x, y, test_x, test_y = task.both_features()
    units = linear_svm.in_span(_unit(x), _unit(test_x))
    fit = Images(units[0], columns(y.numpy(), task.num_classes))
    test = Images(units[1], columns(test_y.numpy(), task.num_classes))
    for name, part in (("train", fit), ("test", test)):
        absent = np.flatnonzero(~(part.labels == 1).any(0))
        if len(absent):
            lacking = some(task.class_names[column] for column in absent)
            raise UserError(
                f"no {name} image shows {lacking}, so the average precision is undefined"
            )
    return fit, test


def _unit(features: Tensor) -> Array:
    rows = features.double().numpy()
    unit: Array = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5)
    return unit


def columns(labels: Labels, num_classes: int) -> Labels:
    """Labels [N, C] of 1, −1, 0 as they are; of one class per image, [N], 1 in its column and −1 elsewhere."""
    if labels.ndim == 2:
        return labels
    signs: Labels = np.where(labels[:, None] == np.arange(num_classes), 1, -1)
    return signs


def scored(weights: Array, test: Images, column: int, settings: SVMSettings) -> float:
    """Average precision in percent of one class by its SVM, [D + 1]."""
    labels = test.labels[:, column]
    scores = test.features @ weights[:-1] + weights[-1]
    if settings.difficult_in_test == "ignored":
        scores = scores[labels != 0]
        labels = labels[labels != 0]
    return 100 * interpolated_area(*precision_recall(scores, labels == 1))


def in_parallel(
    task: Task, label: str, work: Callable[..., Any], jobs: Sequence[Iterable[Any]]
) -> list[Any]:
    """[work(*job) for each job], several at once in processes of their own: LIBLINEAR's random numbers are global.

    Put `work` in a module that does not import torch, which takes seconds.
    """
    done: list[Any] = []
    pool = Parallel(n_jobs=min(cpu_count(), len(jobs)), return_as="generator")
    for result in pool(delayed(work)(*job) for job in jobs):
        done.append(result)
        task.report(label, len(done), len(jobs))
    return done


def run(task: Task, options: SVMOptions) -> Outcome:
    """mAP of one-against-all SVMs on unit features. Difficult images are negatives in training.

    Of several costs each class takes the one with the best mean average precision over the folds, in whole groups if
    there are groups; it is then fitted to all training images. Test images decide nothing.
    """
    fit, test = images_of(task)
    several = len(options.costs) > 1
    groups = task.fit_groups() if several else None
    positive = [column == 1 for column in fit.labels.T]
    how = (options.max_iterations, task.seed)
    costs = [options.costs[0]] * task.num_classes
    if several:
        rare = [
            name
            for name, mask in zip(task.class_names, positive, strict=True)
            if np.bincount(mask, minlength=2).min() < options.folds
        ]
        if rare:
            raise UserError(
                f"{some(rare)}: fewer positive or negative images than the {options.folds} folds; give one cost (--costs 0.5), "
                f"or at least {options.folds} images with and without each class"
            )
        # large costs take longest: first, so that no process waits long for the last job of a class
        ascending = sorted(options.costs)
        jobs = [
            (fit.features, mask, cost, options.folds, *how, groups)
            for mask in positive
            for cost in reversed(ascending)
        ]
        values = in_parallel(task, "choosing costs", linear_svm.cross_validated, jobs)
        table = np.reshape(values, (task.num_classes, -1))[:, ::-1]
        costs = [ascending[number] for number in table.argmax(1)]
    fits = [(fit.features, mask, cost, *how) for mask, cost in zip(positive, costs, strict=True)]
    solved = in_parallel(task, "fitting SVMs", linear_svm.fit, fits)
    precisions = {}
    stopped = []
    for column, (name, (weights, converged)) in enumerate(
        zip(task.class_names, solved, strict=True)
    ):
        precisions[name] = scored(weights, test, column, options)
        if not converged:
            stopped.append(name)
    notes = []
    if stopped:
        notes = [f"the solver stopped at {options.max_iterations} iterations for {some(stopped)}"]
    chosen = dict(zip(task.class_names, costs, strict=True))
    details = {"average_precision": precisions, "costs": chosen}
    metrics = {"mAP": float(np.mean([*precisions.values()]))}
    return Outcome(metrics, details, notes, grouped=groups is not None)


def name_of_costs(costs: tuple[float, ...]) -> str:
    """The part of a protocol id that names the costs."""
    if costs == GOYAL_COSTS:
        return f"{len(costs)}-costs"
    return "C" + ",".join(f"{cost:g}" for cost in costs)


def name_of_settings(settings: SVMSettings) -> str:
    """The end of a protocol id: how difficult images are scored, and a limit of the solver that is not Goyal's."""
    solved = SVMSettings(max_iterations=settings.max_iterations)
    changed = named_changes(SVMSettings(), solved, ())
    return f"difficult-{settings.difficult_in_test}{changed}"


def _identity(preset: str, options: SVMOptions) -> str:
    selection = f"-{options.folds}-folds" if len(options.costs) > 1 else ""
    return f"{preset}-{name_of_costs(options.costs)}{selection}-{name_of_settings(options)}"


PROTOCOL = Protocol(
    run=run,
    presets={"goyal": SVMOptions(), "pcl": SVMOptions(costs=(0.5,), difficult_in_test="negative")},
    identity=_identity,
    labels="any",
)
