"""What a detector has learnt and found so far, kept until there is a result, so that the same command continues."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hexa.data import Source
from hexa.data.source import digest
from hexa.evaluation import cache
from hexa.evaluation.protocol import Task
from hexa.runtime import checkpoints
from hexa.runtime.files import describe, sweep
from hexa.runtime.lock import locked
from hexa.runtime.signals import Interrupted


class State:
    """A folder of checkpoints; None keeps nothing.

    A folder that cannot be written costs no work: a line says so, and nothing more is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = self._home = folder
        if folder is not None:
            sweep(folder)

    def below(self, name: str) -> State:
        """A folder in it."""
        return State(None if self.folder is None else self.folder / name)

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Keep this in place of what an earlier step kept."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoints.save(self.folder, step, content)
        except OSError as error:
            say(f"{describe(error)}: progress from here on is not saved")
            self.folder = None

    def newest(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The last content that can be read, with its `step`; None if there is none."""
        loaded = None if self.folder is None else checkpoints.newest_good(self.folder, say, torch.device(device))
        return None if loaded is None else dict(loaded[1])

    def interrupted(self, number: int, step: int) -> Interrupted:
        """What to raise after a signal, once everything is saved."""
        return Interrupted(number, step, None, None if self.folder is None else "the same command")

    def forget(self) -> None:
        """Remove it, since nobody needs it once there is a result."""
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


@contextmanager
def kept_state(task: Task, fit: Source, boxes: str, options: str) -> Iterator[State]:
    """The state of this training, and of no other; two equal commands would save into one folder.

    boxes: a fingerprint of the objects. options: those that change a weight. Raises UserError if another process is
    at it.
    """
    if not task.cached:
        yield State(None)
        return
    backbone = task.backbone
    made_by = (backbone.content_hash(), repr(backbone.network), str(backbone.mean), str(backbone.std))
    how = (options, str(task.seed), task.precision, task.device.type)
    images = (str(task.class_names), fit.version(), boxes, str(fit.max_image_pixels))
    folder = cache.state_folder(digest(*made_by, *how, *images))
    said = "trains this detector already; wait for it, or give --cached false"
    with locked(cache.lock_of(folder), said, patience=1.0):  # whoever makes room in the cache holds it for a moment
        if problem := cache.trim():
            task.notes.append(problem)
        yield State(folder)


def say(line: str) -> None:
    """A line for whoever watches."""
    print(f"hexa: {line}", file=sys.stderr)
