"""Worker processes that decode each photograph once and cut all of its crops."""

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
from hexa.data.sources.decode import quiet, unit
from hexa.data.sources.source import Source
from hexa.runtime.console import say
from hexa.runtime.random import Stream
from hexa.runtime.signals import Impatient, Interrupts, stops

if TYPE_CHECKING:
    from hexa.data.views.making import Views

#: Number of images per task of a worker; small, so that several workers share a batch and little shared memory is used.
PART = 32
#: Maximum number of worker processes that are chosen automatically; their batches wait in shared memory.
_MOST_WORKERS = 32
Problems = list[tuple[int, str]]


def alike(images: Iterable[Tensor]) -> list[Tensor]:
    """Return images of one type: unchanged if all are uint8, otherwise floats in [0, 1]."""
    listed = list(images)
    if all(image.dtype == torch.uint8 for image in listed):
        return listed
    return [unit(image) for image in listed]


def choose_workers(num_workers: int | None, device: torch.device) -> int:
    """Return `num_workers` (default: half of the cores for training on a CPU, all but one core for a GPU)."""
    if num_workers is not None:
        return num_workers
    cores = available_cores()
    return max(1, min(_MOST_WORKERS, cores // 2 if device.type == "cpu" else cores - 1))


class WorkerEnded(UserError):
    """A worker process was killed or crashed."""


@dataclass
class CropPlan(Dataset[tuple[list[Tensor], Tensor, Problems]]):
    """Crops of part `p` of step `n`, which depend on the stream alone, so that any worker can cut them."""

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
        """Return V tensors of crops [n, C, S_v, S_v], positions [n] of the images, and unreadable images of a part.

        Crops are uint8 if all images are uint8, otherwise float in [0, 1].
        """
        from hexa.data.views.crops import cut_crops  # an evaluation needs no crops

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
    """Return the permutation of the images in an epoch, int64 [count] on the CPU."""
    return torch.randperm(count, generator=stream.child("order", epoch).generator())


class CropStream:
    """Crops of consecutive steps, across epochs, which are prefetched; a jump to another step restarts the workers.

    stop: step before which the stream ends, so that no unused crops are cut.
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
        """Return this process's share of step `number`: crops on the device, positions of images, unreadable images."""
        if self._items is None or number != self._next:
            self.close()
            # the clean-up of the workers refers to the keys, so that the keys must not refer to this object
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
    """Yields dataset[key] for every key in order, prefetched by `num_workers` processes (0: no prefetch); must be closed."""

    def __init__(
        self, dataset: Any, keys: Iterable[Any], device: torch.device, num_workers: int
    ) -> None:
        self._items: Iterator[Any] = map(_Guarded(dataset).__getitem__, keys)
        self.close: Callable[[], object] = lambda: None
        if num_workers == 0:
            return
        # forked workers inherit the signal mask below, and end if their parent is killed
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        try:
            context.Lock()  # creates a file in /dev/shm, which may be read-only or missing
        except OSError as error:
            say(
                f"worker processes cannot start ({reason(error)}; in a container, check "
                "/dev/shm); this process decodes the images, more slowly"
            )
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
        # Ctrl-C and SIGHUP reach every process of the terminal; SIGTERM of a scheduler reaches every process of the job.
        # Workers inherit the blocked signals and ignore them. This process finishes its step, saves, and ends the workers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stops())
        handler = signal.getsignal(signal.SIGCHLD)
        try:
            self._items = iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if signal.getsignal(signal.SIGCHLD) is not handler:
                # the handler of torch raises at any point of the program; `__next__` notices a dead worker instead
                signal.signal(signal.SIGCHLD, handler)
        # also runs at the exit of the interpreter
        self.close = weakref.finalize(self, _end_workers, self._items)

    def __next__(self) -> Any:
        Interrupts.waits = not isinstance(self._items, map)
        try:
            item = next(self._items)
        except Impatient:
            raise WorkerEnded(
                "a second signal ended the wait for a worker process that decodes images"
            ) from None
        # ConnectionError and EOFError: the worker ended while it sent a batch
        except (RuntimeError, ConnectionError, EOFError) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            here = isinstance(self._items, map)
            died = "DataLoader worker" in said if isinstance(error, RuntimeError) else not here
            if not died or said.startswith("Caught "):  # an error of the data set itself
                raise
            raise WorkerEnded(
                f"a worker process that decodes images ended ({said}); use no workers "
                "(--training.num_workers 0 or --num-workers 0), or give the machine more "
                "memory (a container: docker run --shm-size=2g)"
            ) from None
        finally:
            Interrupts.waits = False
        if isinstance(item, UserError):
            raise item
        return item


def _end_workers(iterator: Any) -> None:
    """Run the clean-up of DataLoader, which has no public name, and kill workers that do not end."""
    workers = list(iterator._workers)
    iterator._shutdown_workers()
    for worker in workers:
        if worker.is_alive():
            worker.kill()


class _Guarded(Dataset[Any]):
    """Returns a UserError as a value, because an exception of a worker arrives with a traceback in its message."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        try:
            with quiet():
                return self.dataset[key]
        except UserError as error:
            return error


def _prepare_worker(_: int) -> None:
    """Make this worker send tensors by `_reduced`, and end it if sending fails.

    By default, Python drops an object that a queue cannot send, and the receiver waits forever.
    """
    ForkingPickler.register(Tensor, _reduced)
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]


def _end_worker(error: Exception, _: object) -> None:
    said = f"hexa: a worker process cannot hand an image over: {reason(error)}\n"
    os.write(2, said.encode())
    os._exit(1)


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    """Pickle a tensor for the receiver: in shared memory if there is room, otherwise as bytes through a pipe."""
    try:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return _from_pipe, (tensor.numpy(),)
    return tuple(reduce_tensor(tensor))  # type: ignore[no-untyped-call]


@functools.cache
def _note_pipe() -> None:
    say(
        "shared memory (/dev/shm) is full, so workers hand images over more slowly; for a "
        "container, use docker run --shm-size=2g"
    )


def _from_pipe(values: NDArray[Any]) -> Tensor:
    """Return a tensor that came through a pipe; the receiver prints a note once."""
    _note_pipe()
    return torch.from_numpy(values)


def _unchanged(item: Any) -> Any:
    return item
