"""The state of a detector and its training, kept until there is a result, so that the same command continues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from hexa.data import Source
from hexa.data.loading.workers import Items, choose_workers
from hexa.data.sources.source import digest
from hexa.evaluation.protocol import Task
from hexa.runtime import checkpoints
from hexa.runtime.console import say
from hexa.runtime.files import describe, sweep
from hexa.runtime.lock import locked
from hexa.runtime.signals import Interrupted, Interrupts

#: An item of a walk -> what is being done, how much of it is done, and how much there is.
Take = Callable[[Any], tuple[str, int, int]]
#: What is kept.
Content = dict[str, Any]


class State:
    """A folder of checkpoints; None keeps nothing.

    A folder that cannot be written costs no work: a line says so, and nothing more is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = self._home = folder
        if folder is not None:
            sweep(folder)

    def save(self, step: int, content: Content) -> None:
        """Keep this in place of what an earlier step kept."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoints.save(self.folder, step, content)
        except OSError as error:
            say(f"{describe(error)}: progress from here on is not saved")
            self.folder = None

    def newest(self) -> Content | None:
        """The last content that can be read, with its `step`; None if there is none."""
        loaded = None if self.folder is None else checkpoints.newest_good(self.folder, say)
        return None if loaded is None else dict(loaded[1])

    def walk(
        self,
        task: Task,
        data: Any,
        numbers: range,
        take: Take,
        content: Callable[[], Content] | None = None,
        due: Collection[int] = (),
    ) -> None:
        """Pass data[number] for each of `numbers` to `take`, which returns the progress to report.

        content: makes what is kept after as many steps as `due` names, and after a signal; None keeps what there is.
        Raises Interrupted after a signal.
        """
        items = Items(data, numbers, task.device, choose_workers(task.num_workers, task.device))
        with closing(items), Interrupts(say) as interrupts:
            for number in numbers:
                said = take(next(items))
                stop = interrupts.noticed()
                if content is not None and (number + 1 in due or stop):
                    self.save(number + 1, content())
                if stop:
                    raise self.interrupted(stop, number + 1)
                task.report(*said)

    def interrupted(self, number: int, step: int) -> Interrupted:
        """The exception to raise after a signal, once everything is saved."""
        return Interrupted(number, step, None, None if self.folder is None else "the same command")

    def forget(self) -> None:
        """Remove it, since nobody needs it once there is a result. Files that are not its own stay."""
        if self._home is None:
            return
        with suppress(OSError):
            for path in checkpoints.checkpoints(self._home):
                path.unlink(missing_ok=True)
            self._home.rmdir()


@contextmanager
def kept_state(task: Task, fit: Source, boxes: str, options: str) -> Iterator[State]:
    """The state of exactly this training, next to the file of its result: FILE.unfinished-DIGEST.

    boxes: a fingerprint of the objects. options: those that change a weight. Raises UserError if another process is
    at it, since two equal commands would save into one folder.
    """
    if task.target is None:
        say(
            "progress is not saved; give --out FILE.json to be able to continue after an interruption"
        )
        yield State(None)
        return
    backbone = task.backbone
    made_by = (
        backbone.content_hash(),
        repr(backbone.network),
        str(backbone.mean),
        str(backbone.std),
    )
    how = (options, str(task.seed), task.precision, task.device.type)
    images = (str(task.class_names), fit.fingerprint, boxes, str(fit.max_image_pixels))
    folder = task.target.with_name(
        f"{task.target.name}.unfinished-{digest(*made_by, *how, *images)}"
    )
    with locked(
        folder.with_name(f".{folder.name}.lock"), "trains this detector already; wait for it"
    ):
        yield State(folder)
