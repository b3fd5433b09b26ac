"""The objects that a detector finds in test images."""

from __future__ import annotations

from typing import Any

import torch

from hexa.data.loading.store import check_problems
from hexa.evaluation.protocol import Task
from hexa_paper.detection.detector import Detector, Objects
from hexa_paper.detection.images import TestImages, scaled
from hexa_paper.detection.state import State


@torch.no_grad()
def find(
    task: Task, detector: Detector, shorter: int, longest: int, state: State
) -> dict[int, Objects]:
    """The objects found in each test image that can be read, by its position, on the CPU, in pixels of the photograph.

    Raises Interrupted after a signal; the trained detector is kept in `state`, scoring begins again.
    """
    detector.eval()
    source = task.test
    objects: dict[int, Objects] = {}
    problems: dict[int, str] = {}

    def take(item: Any) -> tuple[str, int, int]:
        position, image, size, problem = item
        if image is None:
            problems[position] = problem
            check_problems(source, problems, 0.01)
        else:
            (found,) = detector([image.to(task.device)])
            boxes = scaled(found["boxes"].cpu(), image.shape[1:], size)
            objects[position] = {name: value.cpu() for name, value in found.items()}
            objects[position]["boxes"] = boxes
        return "detecting", position + 1, len(source)

    state.walk(task, TestImages(source, shorter, longest), range(len(source)), take)
    if problems:
        unread = f"{len(problems)} of {len(source)} images of {source!r}"
        task.notes.append(f"{unread} could not be read")
    return objects
