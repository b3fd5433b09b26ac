"""The objects that a detector finds in test images, kept while it looks, so that it goes on where it was stopped."""

from __future__ import annotations

from contextlib import closing

import torch

from hexa.data import Source
from hexa.data.source import digest
from hexa.data.store import check_problems
from hexa.data.workers import Items, choose_workers
from hexa.evaluation.detection.detector import Detector, Objects
from hexa.evaluation.detection.images import TestImages, scaled
from hexa.evaluation.detection.training import State, say
from hexa.evaluation.protocol import Task
from hexa.runtime import checkpoints
from hexa.runtime.signals import Interrupts
from hexa.runtime.turns import turns

#: Images after which what was found in them is kept.
_CHUNK = 100


class _Found:
    """The objects of the first images that were looked at, by position, and why some could not be read.

    Every part of them is a file, named by the number of images there were by then.
    """

    def __init__(self, state: State) -> None:
        self.objects: dict[int, Objects] = {}
        self.problems: dict[int, str] = {}
        self.seen = self._kept = 0
        self._state = state
        for path in checkpoints.checkpoints(state.folder) if state.folder is not None else ():
            try:
                part = checkpoints.load(path)
            except checkpoints.BadCheckpoint as error:
                say(f"{error}; its images are looked at again")
                break
            if part["begin"] == self.seen:
                self.objects |= part["objects"]
                self.problems |= part["problems"]
                self.seen = self._kept = part["step"]

    def keep(self) -> None:
        """Write what was found since the last time."""

        new = range(self._kept, self.seen)
        if new:
            objects = {position: self.objects[position] for position in new if position in self.objects}
            problems = {position: self.problems[position] for position in new if position in self.problems}
            part = {"begin": self._kept, "objects": objects, "problems": problems}
            self._state.save(self.seen, part, keep=self.seen)
            self._kept = self.seen


@torch.no_grad()
def find(
    task: Task, detector: Detector, source: Source, shorter: int, longest: int, state: State
) -> dict[int, Objects]:
    """The objects found in each image that can be read, by its position, on the CPU, in pixels of the photograph.

    Raises Interrupted after a signal, what was found being kept below `state`.
    """
    detector.eval()
    found = _Found(state.below(f"found-{digest(source.version(), str(len(source)), str(shorter), str(longest))}"))
    left = range(found.seen, len(source))
    workers = choose_workers(task.num_workers, task.device)
    with (
        closing(Items(TestImages(source, shorter, longest), left, task.device, workers)) as items,
        Interrupts(say) as interrupts,
        turns(task.device) as offer_cores,
    ):
        for position in left:
            image, size, problem = next(items)
            if image is None:
                found.problems[position] = problem
                check_problems(source, found.problems, 0.01)
            else:
                objects = {name: value.cpu() for name, value in detector([image.to(task.device)])[0].items()}
                found.objects[position] = {**objects, "boxes": scaled(objects["boxes"], image.shape[1:], size)}
            found.seen = position + 1
            stop = interrupts.noticed()
            if found.seen % _CHUNK == 0 or stop:
                found.keep()
            if stop:
                raise state.interrupted(stop, found.seen)
            offer_cores()
            task.report("detecting", found.seen, len(source))
    if found.problems:
        task.notes.append(f"{len(found.problems)} of {len(source)} images of {source!r} could not be read")
    return found.objects
