"""Worker processes, which decode each photograph once and cut all its crops."""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, Dataset

from hexa.config import UserError, reason
from hexa.data.loading.store import available_cores, readable
from hexa.data.sources.pil import quiet
from hexa.data.sources.source import Source
from hexa.ops.photometric import unit
from hexa.runtime.output import say
from hexa.runtime.random import Stream
from hexa.runtime.signals import Impatient, Interrupts, stops

if TYPE_CHECKING:
    from hexa.data.views.making import Views

#: Images a worker handles at a time, so that several workers share a batch and little shared memory is used.
PART = 32
#: Of a process, if it chooses. Shared memory holds the batches that each has prepared.
_MOST_WORKERS = 32
Problems = list[tuple[int, str]]


def alike(images: Iterable[Tensor]) -> list[Tensor]:
    """Images of one dtype: unchanged if all are uint8, otherwise floats in [0, 1]."""
    listed = list(images)
    if all(image.dtype == torch.uint8 for image in listed):
        return listed
    return [unit(image) for image in listed]


def choose_workers(num_workers: int | None, device: torch.device) -> int:
    """`num_workers` unless None; else half of the cores if training runs on a CPU, all but one if on a GPU."""
    if num_workers is not None:
        return num_workers
    cores = available_cores()
    return max(1, min(_MOST_WORKERS, cores // 2 if device.type == "cpu" else cores - 1))


class WorkerEnded(UserError):
    """A worker process was killed or crashed."""


@dataclass
class CropPlan(Dataset[tuple[list[Tensor], Tensor, Problems]]):
    """Cuts part `p` of step `n`, a function of the stream alone, so that any worker can do it."""

    source: Source
    views: Views
    batch_size: int
    stream: Stream
    rows: slice
    _drawn: tuple[int, Tensor] = field(default=(-1, torch.empty(0)), repr=False)

    @property
    def parts(self) -> int:
        """Number of parts in this process's share of a batch."""
        return math.ceil(int(self.rows.stop - self.rows.start) / PART)

    def __getitem__(self, key: tuple[int, int]) -> tuple[list[Tensor], Tensor, Problems]:
        """One part: V tensors of crops [n, C, S_v, S_v], the images' positions [n], and what could not be read.

        Crops are uint8 if all images are, otherwise float in [0, 1].
        """
        from hexa.data.views.crops import cut_crops  # an evaluation cuts none

        number, part = key
        first = self.rows.start + part * PART
        rows = slice(first, min(first + PART, self.rows.stop))
        numbers = self.views.draw(self.stream.child("step", number), rows)  # [V, n, P]
        crops: list[list[Tensor]] = []
        index = list[int]()
        problems = Problems()
        epoch, step = divmod(number, len(self.source) // self.batch_size)
        if self._drawn[0] != epoch:
            self._drawn = (epoch, epoch_order(self.stream, epoch, len(self.source)))
        order = self._drawn[1]
        start = step * self.batch_size
        for row, wanted in enumerate(order[start + rows.start : start + rows.stop].tolist()):
            cut = functools.partial(
                cut_crops, self.source, views=self.views, numbers=numbers[:, row]
            )
            position, of_image = readable(self.source, wanted, cut, problems)
            index.append(position)
            crops.append(of_image)
        return (
            [torch.stack(alike(view)) for view in zip(*crops, strict=True)],
            torch.tensor(index),
            problems,
        )


def epoch_order(stream: Stream, epoch: int, count: int) -> Tensor:
    """The permutation of the images in an epoch, int64 [count] on the CPU."""
    return torch.randperm(count, generator=stream.child("order", epoch).generator())


class CropStream:
    """Crops of consecutive steps, across epochs, cut ahead; jumping to another step restarts the workers.

    stop: the step before which the stream ends, so that no crops are cut in vain.
    """

    def __init__(
        self, plan: CropPlan, device: torch.device, num_workers: int, stop: int | None = None
    ) -> None:
        self.plan = plan
        self.device = device
        self.num_workers = num_workers
        self.stop = stop
        self._next = -1
        self._items: Items | None = None

    def take(self, number: int) -> tuple[list[Tensor], Tensor, Problems]:
        """This process's share of step `number`: crops on the device, positions of the images, what was unreadable."""
        if self._items is None or number != self._next:
            self.close()
            # the clean-up of the workers refers to the keys, which must not refer to us
            parts = range(self.plan.parts)
            steps = itertools.count(number) if self.stop is None else range(number, self.stop)
            keys = ((step, part) for step in steps for part in parts)
            self._items = Items(self.plan, keys, self.device, self.num_workers)
        crops_of, index_of, problems_of = zip(
            *(next(self._items) for _ in range(self.plan.parts)), strict=True
        )
        self._next = number + 1
        crops = [
            torch.cat([piece.to(self.device, non_blocking=True) for piece in alike(pieces)])
            for pieces in zip(*crops_of, strict=True)
        ]
        return crops, torch.cat(index_of), list(itertools.chain(*problems_of))

    def close(self) -> None:
        """End the workers."""
        if self._items is not None:
            self._items.close()
            self._items = None


class Items(Iterator[Any]):
    """dataset[key] for every key in order, prefetched by `num_workers` processes (0: computed here). Close it."""

    def __init__(
        self, dataset: Any, keys: Iterable[Any], device: torch.device, num_workers: int
    ) -> None:
        self._items: Iterator[Any] = map(_Guarded(dataset).__getitem__, keys)
        self.close: Callable[[], object] = lambda: None
        if num_workers == 0:
            return
        # not Python's default: workers inherit the signal mask set below, and end once their parent is killed
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        try:
            context.Lock()  # a file of /dev/shm, which may be read-only or missing
        except OSError as error:
            problem = (
                f"worker processes cannot start ({reason(error)}; in a container, check /dev/shm)"
            )
            say(f"{problem}; this process decodes the images, more slowly")
            return
        loader: Any = DataLoader(
            _Guarded(dataset),
            batch_size=None,
            sampler=keys,
            num_workers=num_workers,
            collate_fn=_unchanged,
            pin_memory=device.type == "cuda",
            prefetch_factor=4,
            worker_init_fn=_prepare_worker,
            multiprocessing_context=context,
        )
        # Ctrl-C and SIGHUP reach every process of the terminal, and a scheduler's SIGTERM every process of the job.
        # Workers inherit the blocked signals and ignore them: this process finishes its step, saves, and ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stops())
        handler = signal.getsignal(signal.SIGCHLD)
        try:
            self._items = iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if signal.getsignal(signal.SIGCHLD) is not handler:
                # torch's handler raises in the middle of anything; we notice a dead worker when we wait for it
                signal.signal(signal.SIGCHLD, handler)
        # runs when the interpreter exits, too
        self.close = weakref.finalize(self, _end_workers, self._items)

    def __next__(self) -> Any:
        Interrupts.waits = not isinstance(self._items, map)
        try:
            item = next(self._items)
        except Impatient:
            raise WorkerEnded(
                "a second signal ended the wait for a worker process that decodes images"
            ) from None
        # the last two: it ended while it sent a batch
        except (RuntimeError, ConnectionError, EOFError) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            here = isinstance(self._items, map)
            died = "DataLoader worker" in said if isinstance(error, RuntimeError) else not here
            if not died or said.startswith("Caught "):  # the data set's own error
                raise
            fewer = "use no workers (--training.num_workers 0 or --num-workers 0)"
            more = "give the machine more memory (a container: docker run --shm-size=2g)"
            ended = f"a worker process that decodes images ended ({said})"
            raise WorkerEnded(f"{ended}; {fewer}, or {more}") from None
        finally:
            Interrupts.waits = False
        if isinstance(item, UserError):
            raise item
        return item


def _end_workers(iterator: Any) -> None:
    """Run DataLoader's own clean-up, which has no public name, and kill a worker that is stuck."""
    workers = list(iterator._workers)
    iterator._shutdown_workers()
    for worker in workers:
        if worker.is_alive():
            worker.kill()


class _Guarded(Dataset[Any]):
    """Returns a UserError as a value: raised in a worker, it would arrive with a traceback in its message."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        try:
            with quiet():
                return self.dataset[key]
        except UserError as error:
            return error


def _prepare_worker(_: int) -> None:
    """Have this worker hand tensors over by `_reduced`, and end it if it cannot hand something over.

    Python drops what a queue cannot send, and whoever waits for it would wait forever.
    """
    ForkingPickler.register(Tensor, _reduced)
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]


def _end_worker(error: Exception, _: object) -> None:
    said = f"hexa: a worker process cannot hand an image over: {reason(error)}\n"
    os.write(2, said.encode())
    os._exit(1)


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    """How a worker hands a tensor over: in shared memory if there is room, otherwise as bytes through a pipe."""
    try:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return _from_pipe, (tensor.numpy(),)
    return tuple(reduce_tensor(tensor))  # type: ignore[no-untyped-call]


@functools.cache
def _note_pipe() -> None:
    slow = "shared memory (/dev/shm) is full, so workers hand images over more slowly"
    say(f"{slow}; in a container, docker run --shm-size=2g makes room")


def _from_pipe(values: NDArray[Any]) -> Tensor:
    """A tensor that did not fit into shared memory, in the process that receives it, which says so once."""
    _note_pipe()
    return torch.from_numpy(values)


def _unchanged(item: Any) -> Any:
    return item
