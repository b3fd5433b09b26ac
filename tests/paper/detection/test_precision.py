"""Average precision of boxes against VOC's rule as a plain loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hexa_paper.detection.boxes import Boxes
from hexa_paper.detection.detector import Objects
from hexa_paper.detection.precision import OVERLAPS, precisions
from tests.evaluation.test_average_precision import areas

Scene = tuple[list[Objects], list[Boxes]]


def objects_of(boxes: Any, labels: Any, scores: Any) -> Objects:
    numbers = {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels)}
    return numbers | {"scores": torch.tensor(scores, dtype=torch.float64)}


def scene(seed: int) -> Scene:
    """Objects on whole pixels; found boxes near them, some twice, some elsewhere; many scores are equal."""
    generator = np.random.default_rng(seed)
    found = []
    truth = []
    for _ in range(12):
        count = int(generator.integers(0, 5))
        corner = generator.integers(0, 60, (count, 2))
        boxes = np.concatenate([corner, corner + generator.integers(8, 40, (count, 2))], 1).astype(
            np.float32
        )
        labels = generator.integers(0, 3, count)
        hard = generator.random(count) < 0.25
        truth.append(
            Boxes(
                torch.tensor(boxes).view(-1, 4),
                torch.tensor(labels),
                torch.tensor(hard),
                (120, 120),
            )
        )
        near = np.concatenate([boxes, boxes[: count // 2]]) + generator.normal(
            0, 2.5, (count + count // 2, 4)
        )
        far = generator.uniform(0, 50, (3, 2))
        every = np.concatenate([near, np.concatenate([far, far + 20], 1)]).astype(np.float32)
        named = np.concatenate([labels, labels[: count // 2], generator.integers(0, 3, 3)]) + 1
        found.append(objects_of(every, named, generator.random(len(every)).round(1)))
    return found, truth


def overlap(a: list[float], b: list[float]) -> float:
    """The devkit's, of boxes in pixels counted from 1 whose borders belong to them."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    return (
        width
        * height
        / (sum([(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]) - width * height)
    )


def by_hand(scene: Scene, label: int, threshold: float, rule: str) -> float:
    """Compute precision and recall like VOC's devkit, one found box after the other, where the
    score changes."""
    detections = []
    for image, objects in enumerate(scene[0]):
        for box, name, score in zip(
            objects["boxes"], objects["labels"], objects["scores"], strict=True
        ):
            if name == label + 1:
                x0, y0, x1, y1 = (round(float(value), 1) for value in box)
                detections.append((round(float(score), 3), image, [x0 + 1, y0 + 1, x1, y1]))
    detections.sort(key=lambda entry: -entry[0])
    sought = sum(int((~one.difficult[one.labels == label]).sum()) for one in scene[1])
    taken = set()
    right = 0
    wrong = 0
    curve = []
    for number, (score, image, box) in enumerate(detections):
        best = -math.inf
        which = -1
        truth = scene[1][image]
        for place in range(len(truth.boxes)):
            if truth.labels[place] == label:
                x0, y0, x1, y1 = truth.boxes[place].tolist()
                value = overlap(box, [x0 + 1, y0 + 1, x1, y1])
                if value > best:
                    best = value
                    which = place
        if best > threshold:
            if not truth.difficult[which]:
                right, wrong = (right, wrong + 1) if (image, which) in taken else (right + 1, wrong)
                taken.add((image, which))
        else:
            wrong += 1
        if right + wrong and (number + 1 == len(detections) or detections[number + 1][0] != score):
            curve.append((right / sought, right / (right + wrong)))
    return areas(curve)[rule == "eleven_point"]


@pytest.mark.parametrize("rule", ["area", "eleven_point"])
@pytest.mark.parametrize("seed", range(3))
def test_voc_precision_loop(seed: int, rule: str) -> None:
    """Precision follows VOC's rule."""
    made = scene(seed)
    values = precisions(*made, 3, rule)
    assert values.shape == (3, len(OVERLAPS))
    for label in range(3):
        for place, threshold in enumerate(OVERLAPS):
            assert values[label, place] == pytest.approx(
                by_hand(made, label, threshold, rule), abs=1e-9
            )
    assert values[:, 0].mean() > values[:, 5].mean() > 0


def test_classes_without_boxes() -> None:
    """A class that is never found has precision zero; a class without objects has none."""
    one = torch.zeros(1, dtype=torch.int64)
    truth = Boxes(
        torch.tensor([[0.0, 0, 9, 9]]),
        one,
        one.bool(),
        (20, 20),
    )
    nothing = objects_of(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), [])
    found, absent = precisions([nothing], [truth], 2, "eleven_point")
    assert (found == 0).all()
    assert np.isnan(absent).all()
