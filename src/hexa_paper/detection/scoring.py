"""The objects that a detector finds in test images, kept while it looks, so that an interrupted scoring continues."""

from __future__ import annotations

from typing import Any

import torch

from hexa.data.loading.store import check_problems
from hexa.data.sources.fingerprint import digest
from hexa.evaluation.protocol import Task
from hexa_paper.detection.detector import Detector, Objects
from hexa_paper.detection.images import TestImages, scaled
from hexa_paper.detection.state import SEEN, State

#: Images after which what was found in them is kept.
_CHUNK = 100


@torch.no_grad()
def find(
    task: Task, detector: Detector, shorter: int, longest: int, state: State
) -> dict[int, Objects]:
    """The objects found in each test image that can be read, by its position, on the CPU, in pixels of the photograph.

    Raises Interrupted after a signal, what was found being kept below `state`.
    """
    detector.eval()
    source = task.test
    name = f"{SEEN}{digest(source.version(), str(len(source)), str(shorter), str(longest))}"
    kept = State(None if state.folder is None else state.folder / name)
    before = kept.newest() or {"step": 0, "objects": {}, "problems": {}}
    objects: dict[int, Objects] = before["objects"]
    problems: dict[int, str] = before["problems"]

    def take(item: Any) -> tuple[str, int, int]:
        position, image, size, problem = item
        if image is None:
            problems[position] = problem
            check_problems(source, problems, 0.01)
        else:
            detected = {
                name: value.cpu() for name, value in detector([image.to(task.device)])[0].items()
            }
            objects[position] = {
                **detected,
                "boxes": scaled(detected["boxes"], image.shape[1:], size),
            }
        return "detecting", position + 1, len(source)

    left = range(before["step"], len(source))
    due = range(0, len(source) + 1, _CHUNK)
    found = {"objects": objects, "problems": problems}
    kept.walk(task, TestImages(source, shorter, longest), left, take, lambda: found, due)
    if problems:
        task.notes.append(
            f"{len(problems)} of {len(source)} images of {source!r} could not be read"
        )
    return objects
