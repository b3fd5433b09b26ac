"""Average precision of detections by the rules of PASCAL VOC, at several overlaps (F28)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch.nn import functional as F
from torchvision.ops import box_iou

from hexa.evaluation.average_precision import Values, interpolated_area, precision_recall
from hexa_paper.detection.boxes import Boxes
from hexa_paper.detection.detector import Objects

#: IoU 0.50, 0.55, …, 0.95.
OVERLAPS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
#: (precision, recall) -> the average precision.
Rule = Callable[[Values, Values], float]


def eleven_point(precision: Values, recall: Values) -> float:
    """Mean over r = 0, 0.1, …, 1 of the best precision at a recall of at least r, 0 where there is none (VOC2007).

    Levels are `np.arange(0, 1.1, 0.1)`, as in the evaluators of published numbers: those of 0.3, 0.6 and 0.7 lie a last
    digit higher, so that a recall of exactly 0.3 does not reach its level.
    """
    best = []
    for level in np.arange(0.0, 1.1, 0.1):
        reached = precision[recall >= level]
        best.append(reached.max(initial=0.0))
    return float(np.mean(best))


RULES: dict[str, Rule] = {"area": interpolated_area, "eleven_point": eleven_point}


def precisions(
    detected: Sequence[Objects],
    truth: Sequence[Boxes],
    num_classes: int,
    rule: str,
) -> Values:
    """Average precision of each class at each of OVERLAPS, [C, 10] in 0 … 1; NaN for a class without objects.

    detected: per image, scores in any order, labels from 1 on; truth: of the same images, labels from 0 on.
    A detection belongs to the object of its class that it overlaps most. It is right if they overlap by more than the
    threshold and no better scored box had that object already, does not count if the object is difficult, and is wrong
    otherwise; difficult objects need not be found. As in Detectron2's evaluator coordinates are rounded to 0.1 pixel
    and scores to 0.001; unlike there, boxes of equal scores are counted together, so that their order decides nothing.
    """
    chosen = RULES[rule]
    of_classes = [_of_class(detected, truth, label, chosen) for label in range(num_classes)]
    return np.array(of_classes)


def _of_class(
    detected: Sequence[Objects],
    truth: Sequence[Boxes],
    label: int,
    rule: Rule,
) -> list[float]:
    parts = []  # of each image: scores of its boxes, their largest overlaps, and which object they overlap most
    difficult: list[bool] = []
    for objects, boxes in zip(detected, truth, strict=True):
        here = boxes.labels == label
        chosen = objects["labels"] == label + 1
        found = objects["boxes"][chosen].double().round(decimals=1)
        overlaps = box_iou(found, boxes.boxes[here].double())
        # a last column, so that an image without an object of this class has one that nothing overlaps
        overlap = F.pad(overlaps, (0, 1)).numpy()
        score = objects["scores"][chosen].double().numpy().round(3)
        owner = len(difficult) + overlap.argmax(1)
        parts.append((score, overlap.max(1), owner))
        difficult += boxes.difficult[here].tolist()
    is_difficult = np.array([*difficult, False])
    num_sought = int((~is_difficult[:-1]).sum())
    if num_sought == 0:
        return [float("nan")] * len(OVERLAPS)
    score, overlap, owner = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(-score, kind="stable")
    score = score[order]
    overlap = overlap[order]
    owner = owner[order]
    values = []
    for threshold in OVERLAPS:
        counts = (overlap <= threshold) | ~is_difficult[owner]
        overlapping = overlap > threshold
        hits = np.flatnonzero(overlapping & counts)
        _, first = np.unique(owner[hits], return_index=True)
        right = np.zeros(len(score), dtype=np.bool_)
        right[hits[first]] = True
        curve = precision_recall(score[counts], right[counts], num_sought)
        values.append(rule(*curve))
    return values
