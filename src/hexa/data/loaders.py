"""Batches: the same in every run with the same seed, whatever the number of processes or workers, from any step on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.core.batch import Batch
from hexa.data import store as stores
from hexa.data import workers
from hexa.data.source import Source
from hexa.data.views import Transform, Views
from hexa.runtime import processes
from hexa.runtime.random import Stream

RESIDENT_LIMIT_BYTES = 4 * 2**30


class PretrainLoader:
    """Batches of views for pre-training.

    A source of images of one size that fits into `resident_limit_bytes` is decoded once and lives on the device,
    where views are made in batches. Otherwise worker processes decode every image once a step and cut its crops;
    colours follow on the device.

    batch_size: over all processes. num_workers: None chooses. tolerance: share of unreadable images above which
    UserError lists them; fewer are replaced by their neighbours and appear in `problems`. Raises UserError if the
    batch is larger than the data or does not divide among the processes.

    wait_seconds: how long, in all, the caller waited for batches (on a GPU: for their making to be queued).
    """

    def __init__(
        self,
        source: Source,
        views: Views,
        batch_size: int,
        stream: Stream,
        device: torch.device | str = "cpu",
        num_workers: int | None = None,
        resident_limit_bytes: float = RESIDENT_LIMIT_BYTES,
        tolerance: float = 0.01,
        progress: stores.Progress | None = None,
    ) -> None:
        if batch_size > len(source):
            raise UserError(
                f"batch_size: {batch_size} is more than the {len(source)} images of '{source.name}#{source.split}'; "
                f"take at most {len(source)}"
            )
        if batch_size % processes.world_size():
            raise UserError(
                f"batch_size: {batch_size} does not divide among {processes.world_size()} processes; take a multiple"
            )
        self.source, self.views, self.stream = source, views, stream
        self.batch_size, self.device, self.tolerance = batch_size, torch.device(device), tolerance
        self.steps_per_epoch = len(source) // batch_size
        share = batch_size // processes.world_size()
        self.rows = slice(processes.rank() * share, (processes.rank() + 1) * share)
        self.wait_seconds = 0.0
        self._problems: dict[int, str] = {}
        self._crops: workers.CropStream | None = None
        self.store = stores.ImageStore.of(source, self.device, resident_limit_bytes, tolerance, progress)
        if self.store is not None:
            self._problems = self.store.problems
        else:
            plan = workers.CropPlan(source, views, batch_size, stream, self.rows)
            self._crops = workers.CropStream(plan, self.device, workers.choose_workers(num_workers, self.device))

    @property
    def resident(self) -> bool:
        """Whether the images live on the device."""
        return self.store is not None

    @property
    def problems(self) -> list[str]:
        """A line for every image that could not be read so far."""
        return stores.describe_problems(self.source, self._problems)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from one of its steps on, nothing being replayed.

        Their order is a permutation drawn from (seed, epoch); the last, incomplete batch is dropped. This process gets
        its block of every global batch.
        """
        order = epoch_order(self.stream, epoch, len(self.source)) if self.resident else None
        for step in range(start_step, self.steps_per_epoch):
            began = time.perf_counter()
            number = epoch * self.steps_per_epoch + step
            batch = self._resident_batch(order, step, number) if order is not None else self._worker_batch(number)
            self.wait_seconds += time.perf_counter() - began
            yield batch

    def _resident_batch(self, order: Tensor, step: int, number: int) -> Batch:
        assert self.store is not None
        first = step * self.batch_size
        index = self.store.stand_in[order[first + self.rows.start : first + self.rows.stop]]
        index = workers.to_device(index, self.device)
        stream = self.stream.child("step", number)
        crops = self.views(self.store.images.index_select(0, index), stream, self.rows)
        return Batch(crops, index, stream)

    def _worker_batch(self, number: int) -> Batch:
        assert self._crops is not None
        crops, index, problems = self._crops.take(number)
        if problems:
            self._problems.update(problems)
            stores.check_problems(self.source, self._problems, self.tolerance)
        stream = self.stream.child("step", number)
        return Batch(self.views.finish(crops, stream, self.rows), workers.to_device(index, self.device), stream)

    def close(self) -> None:
        """End the workers. They also end with the loader or the process."""
        if self._crops is not None:
            self._crops.close()


def epoch_order(stream: Stream, epoch: int, count: int) -> Tensor:
    """The permutation of the images in an epoch, int64 [count] on the CPU."""
    return torch.randperm(count, generator=stream.child("order", epoch).generator())


def evaluation_batches(
    source: Source,
    transform: Transform,
    batch_size: int,
    device: torch.device | str = "cpu",
    num_workers: int | None = None,
    problems: dict[int, str] | None = None,
    tolerance: float = 0.01,
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """All images once, in order: (images float [B, 3, S, S] in [0, 1], labels int64 [B] or None, positions int64 [B]).

    Images and labels are on `device`, positions on the CPU. Unreadable images are left out and entered in `problems`;
    above the share `tolerance` UserError lists them. Several processes each see everything.
    """
    found: dict[int, str] = {} if problems is None else problems
    target = torch.device(device)
    labels = None if source.labels is None else torch.from_numpy(source.labels)
    for images, index, unreadable in workers.evaluation_stream(source, transform, batch_size, target, num_workers):
        if unreadable:
            found.update(unreadable)
            stores.check_problems(source, found, tolerance)
        if len(index):
            chosen = None if labels is None else workers.to_device(labels[index], target)
            yield workers.to_device(images, target).float().div_(255), chosen, index
