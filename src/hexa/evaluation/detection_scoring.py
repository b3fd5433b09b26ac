"""The objects that a detector finds, kept while it looks, so that it goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path

import torch

from hexa.data import Source
from hexa.data.store import check_problems
from hexa.data.workers import Items, choose_workers
from hexa.evaluation.detection_images import TestImages, scaled
from hexa.evaluation.detection_training import interrupted, say
from hexa.evaluation.detector import Detector, Objects
from hexa.evaluation.protocol import Task
from hexa.runtime import checkpoints
from hexa.runtime.signals import Interrupts
from hexa.runtime.turns import turns

#: Images after which what was found in them is kept.
_CHUNK = 100


class Found:
    """The objects of each image that was looked at and could be read, by position, and why others could not be read.

    folder: where they are kept in chunks, a file of the images from `start` to its number; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.objects: dict[int, Objects] = {}
        self.problems: dict[int, str] = {}
        self.seen = self._kept = 0
        self._folder = folder
        for path in [] if folder is None else checkpoints.checkpoints(folder):
            try:
                state = checkpoints.load(path)
            except checkpoints.BadCheckpoint as error:
                say(f"{error}; its images are looked at again")
                return
            if state["start"] != self.seen:
                return
            self.objects |= state["objects"]
            self.problems |= state["problems"]
            self.seen = self._kept = state["step"]

    def keep(self) -> None:
        """Write what was found since the last time."""
        if self._folder is None or self.seen == self._kept:
            return
        ...
