"""The objects that a detector finds in test images, kept while it looks, so that an interrupted scoring continues."""

from __future__ import annotations

from contextlib import closing

import torch

from hexa.data import Source
from hexa.data.loading.store import check_problems
from hexa.data.loading.workers import Items, choose_workers
from hexa.data.sources.source import digest
from hexa.evaluation.detection.detector import Detector, Objects
from hexa.evaluation.detection.images import TestImages, scaled
from hexa.evaluation.detection.state import SEEN, State, say
from hexa.evaluation.protocol import Task
from hexa.runtime.signals import Interrupts

#: Images after which what was found in them is kept.
_CHUNK = 100


@torch.no_grad()
def find(
    task: Task, detector: Detector, source: Source, shorter: int, longest: int, state: State
) -> dict[int, Objects]:
    """The objects found in each image that can be read, by its position, on the CPU, in pixels of the photograph.

    Raises Interrupted after a signal, what was found being kept below `state`.
    """
    detector.eval()
    kept = state.below(f"{SEEN}{digest(source.version(), str(len(source)), str(shorter), str(longest))}")
    before = kept.newest() or {"step": 0, "objects": {}, "problems": {}}
    objects: dict[int, Objects] = before["objects"]
    problems: dict[int, str] = before["problems"]
    left = range(before["step"], len(source))
    workers = choose_workers(task.num_workers, task.device)
    images = Items(TestImages(source, shorter, longest), left, task.device, workers)
    with closing(images) as items, Interrupts(say) as interrupts:
        for position in left:
            image, size, problem = next(items)
            if image is None:
                problems[position] = problem
                check_problems(source, problems, 0.01)
            else:
                detected = {name: value.cpu() for name, value in detector([image.to(task.device)])[0].items()}
                objects[position] = {**detected, "boxes": scaled(detected["boxes"], image.shape[1:], size)}
            stop = interrupts.noticed()
            if (position + 1) % _CHUNK == 0 or stop:
                kept.save(position + 1, {"objects": objects, "problems": problems})
            if stop:
                raise state.interrupted(stop, position + 1)
            task.report("detecting", position + 1, len(source))
    if problems:
        task.notes.append(f"{len(problems)} of {len(source)} images of {source!r} could not be read")
    return objects
