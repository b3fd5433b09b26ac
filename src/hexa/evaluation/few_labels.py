"""Few labels per class: scores from images drawn class by class, their mean over draws, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.evaluation.protocol import Outcome, Positive, Task
from hexa.evaluation.split import draw_per_class
from hexa.runtime.random import Stream

#: Of the intervals, everywhere.
CONFIDENCE = 0.95


#: The type of an option that lists numbers of labels per class.
Shots = Positive[int]


def half_width(scores: Sequence[float] | NDArray[np.float64], comparisons: int = 1) -> float:
    """Half the width of the 95 % interval of a mean over n ≥ 2 draws: t(n − 1) · s / √n, s with n − 1.

    comparisons: intervals that are to hold together with 95 % (Bonferroni).
    """
    reach = student(len(scores) - 1, comparisons)
    return float(reach * np.std(scores, ddof=1) / len(scores) ** 0.5)


def student(freedom: float, comparisons: int = 1) -> float:
    """Half the width of a 95 % interval in standard errors: Student's quantile t(freedom)."""
    from scipy.special import stdtrit  # a quarter of a second, which plans do without

    return float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / 2 / comparisons))


def over_scores(name: str, scores: Sequence[float]) -> dict[str, float]:
    """The mean by this name, and of several scores NAME_std and NAME_interval, half of its 95 % interval."""
    mean = {name: float(np.mean(scores))}
    if len(scores) == 1:
        return mean
    return mean | {
        f"{name}_std": float(np.std(scores, ddof=1)),
        f"{name}_interval": half_width(scores),
    }


def over_draws(
    task: Task,
    shots: Sequence[int],
    draws: int,
    score: Callable[..., Mapping[str, float]],
    groups: NDArray[np.int64] | None = None,
) -> Outcome:
    """Mean top1 in percent over draws of k labelled images of every class, for each k, on all test images.

    score: features and labels that were drawn, features and labels of the test images -> {"top1", "balanced_accuracy", …};
    it also takes `groups` of the drawn images, if these are given for the rows of `task.features("fit")`. The draws depend
    on the labels and the task's seed alone, so that backbones can be compared draw by draw; the images of a smaller k
    are among those of a larger one. metrics: `top1@k`, `top1@k_std` and `top1@k_interval` (half of the 95 % interval of
    the mean), `balanced_accuracy@k`, or `top1` … for a single k. A k that a class has too few images for is left out, which a note says.
    Raises UserError if that leaves none.
    """
    fit, fit_labels, test, test_labels = task.both_features()
    labels = fit_labels.numpy()
    counts = {
        task.class_names[label]: count
        for label, count in enumerate(np.bincount(labels).tolist())
        if count
    }
    kept, notes = affordable(shots, counts, "labelled images", "per class")
    metrics: dict[str, float] = {}
    details: dict[str, Any] = {}
    for i, k in enumerate(kept):
        scores = list[float]()
        balanced = list[float]()
        for number in range(draws):
            task.report(f"{k} labels per class", i * draws + number, len(kept) * draws)
            rows = torch.from_numpy(
                draw_per_class(labels, k, Stream(task.seed).child("labels", number))
            )
            more = {} if groups is None else {"groups": groups[rows.numpy()]}
            found = score(fit[rows], fit_labels[rows], test, test_labels, **more)
            scores.append(found["top1"])
            balanced.append(found["balanced_accuracy"])
        at = "" if len(kept) == 1 else f"@{k}"
        metrics |= over_scores(f"top1{at}", scores)
        metrics[f"balanced_accuracy{at}"] = float(np.mean(balanced))
        details[str(k)] = {"draws": scores}
    task.report("few labels", len(kept) * draws, len(kept) * draws)
    return Outcome(metrics, details, notes, {"shots": kept} if notes else {})


def affordable(
    shots: Sequence[int], counts: Mapping[str, int], images: str, each: str, insist: bool = False
) -> tuple[tuple[int, ...], list[str]]:
    """The numbers of labels per class that every class has, and a note if others are left out.

    counts: images by class. images, each: what the messages call them. Raises UserError if no number is left, and if
    any is left out where the user insists on them.
    """
    scarcest = min(counts, key=counts.__getitem__)
    most = counts[scarcest]
    kept = tuple(k for k in shots if k <= most)
    left_out = ", ".join(str(k) for k in shots if k > most)
    said = f"class '{scarcest}' has only {most} {images}"
    if not kept or (insist and left_out):
        raise UserError(
            f"{said}, too few for {left_out} {each}; ask for up to {most}, such as --shots {most}"
        )
    return kept, [f"{said}: {left_out} {each} are left out"] if left_out else []


def identity(shots: Sequence[int], draws: int) -> str:
    """The part of a protocol id that names the labels: `1,5-labels-5-draws`."""
    return f"{','.join(map(str, shots))}-labels-{draws}-draws"
