"""Average precision of detections by the rules of PASCAL VOC, at several overlaps (F28)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torchvision.ops import box_iou

from hexa.data.sources.source import Boxes
from hexa.evaluation.average_precision import Values, eleven_point, interpolated_area, precision_recall
from hexa.evaluation.detection.detector import Objects

#: IoU 0.50, 0.55, …, 0.95.
OVERLAPS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
RULES: dict[str, Callable[[Values, Values], float]] = {"area": interpolated_area, "eleven_point": eleven_point}


def precisions(detected: Sequence[Objects], truth: Sequence[Boxes], num_classes: int, rule: str) -> Values:
    """Average precision of each class at each of OVERLAPS, [C, 10] in 0 … 1; NaN for a class without objects.

    detected: per image, scores in any order, labels from 1 on; truth: of the same images, labels from 0 on.
    A detection belongs to the object of its class that it overlaps most. It is right if they overlap by more than the
    threshold and no better scored box had that object already, does not count if the object is difficult, and is wrong
    otherwise; difficult objects need not be found. As in Detectron2's evaluator coordinates are rounded to 0.1 pixel
    and scores to 0.001; unlike there, boxes of equal scores are counted together, so that their order decides nothing.
    """
    return np.array([_of_class(detected, truth, label, RULES[rule]) for label in range(num_classes)])


def _of_class(
    detected: Sequence[Objects], truth: Sequence[Boxes], label: int, rule: Callable[[Values, Values], float]
) -> list[float]:
    scores: list[NDArray[np.float64]] = []
    overlaps: list[NDArray[np.float64]] = []
    objects: list[NDArray[np.int64]] = []
    difficult: list[NDArray[np.bool_]] = []
    count = 0
    for objects_here, boxes in zip(detected, truth, strict=True):
        here = boxes.labels == label
        chosen = objects_here["labels"] == label + 1
        score = objects_here["scores"][chosen].double().numpy().round(3)
        overlap = box_iou(objects_here["boxes"][chosen].double().round(decimals=1), boxes.boxes[here].double()).numpy()
        difficult.append(boxes.difficult[here].numpy())
        if here.any():
            best = overlap.argmax(1)
            objects.append(count + best)
            overlaps.append(overlap.max(1))
        else:
            objects.append(np.zeros(len(score), dtype=np.int64))
            overlaps.append(np.zeros(len(score)))
        scores.append(score)
        count += int(here.sum())
    is_difficult = np.concatenate(difficult)
    num_sought = int((~is_difficult).sum())
    if num_sought == 0:
        return [float("nan")] * len(OVERLAPS)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    score, overlap = np.concatenate(scores)[order], np.concatenate(overlaps)[order]
    owner = np.concatenate(objects)[order]
    values = []
    for threshold in OVERLAPS:
        hit = overlap > threshold
        ignored = np.zeros(len(hit), dtype=np.bool_)
        ignored[hit] = is_difficult[owner[hit]]
        right = np.zeros(len(hit), dtype=np.bool_)
        first = np.unique(owner[hit & ~ignored], return_index=True)[1]
        right[np.flatnonzero(hit & ~ignored)[first]] = True
        values.append(rule(*precision_recall(score[~ignored], right[~ignored], num_sought)))
    return values
