"""Batches for training. They depend on the seed alone, not on the number of processes or workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from hexa.config import field_error
from hexa.core.batch import Batch
from hexa.data.loading import store as stores, workers
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches
from hexa.data.loading.side_stream import SideStream
from hexa.data.sources.decode import unit
from hexa.data.sources.source import Source
from hexa.data.views.making import Views
from hexa.runtime import processes
from hexa.runtime.precision import to_device
from hexa.runtime.random import Stream

#: Default limit in bytes for images that are kept on the device.
RESIDENT_LIMIT_BYTES = 4 * 2**30


def check_batch_size(batch: int, images: int, data: str) -> None:
    """Raise ConfigError if the global batch exceeds the number of images, or is not divisible by the processes."""
    world = processes.world_size()
    if batch > images:
        raise field_error(
            "batch_size",
            f"{batch} is more than the {images} images of {data}; use at most {images}",
        )
    if batch % world:
        fits = max(1, batch // world) * world
        raise field_error(
            "batch_size", f"{batch} is not divisible by {world} processes; use {fits}"
        )


class PretrainLoader:
    """Batches of views for pre-training.

    Images of one size that fit into `resident_limit_bytes` are decoded once and kept on the device, where views are made
    in batches. Otherwise, worker processes decode every image once per step and cut its crops, and the device applies
    colour operations.

    batch_size: batch size over all processes. num_workers: number of worker processes (default: chosen for the machine).
    tolerance: a UserError lists the unreadable images if their share is larger; otherwise, neighbours replace unreadable
    images, and `problems` lists them. sets: number of epochs with new batches, which later epochs repeat (default: all
    epochs). remember: function from a batch to the batch to train on, such as cached activations; it is called once for
    all epochs that repeat the batch, as long as the results fit into `resident_limit_bytes`. wait_seconds: total time
    that training has waited for batches; on a GPU, the making of a batch counts if the step before ended meanwhile.
    Raises UserError if the batch is larger than the data or not a multiple of the number of processes.
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
        sets: int | None = None,
    ) -> None:
        check_batch_size(batch_size, len(source), source.title)
        self.source = source
        self.views = views
        self.stream = stream
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.tolerance = tolerance
        self.steps_per_epoch = len(source) // batch_size
        self.sets = sets
        self.remember: Callable[[Batch], Batch] | None = None
        self._remembered = dict[int, Batch]()
        self._room = resident_limit_bytes
        share = batch_size // processes.world_size()
        self.rows = slice(processes.rank() * share, (processes.rank() + 1) * share)
        self.wait_seconds = 0.0
        self._side = SideStream(self.device)
        self._num_workers = num_workers
        self.store = stores.ImageStore.of(source, self.device, resident_limit_bytes, tolerance)
        self.resident = self.store is not None
        """True if the images are kept on the device."""
        self._problems: dict[int, str] = {} if self.store is None else self.store.problems
        self._crops = self._crop_stream(stream)

    def _crop_stream(self, stream: Stream, stop: int | None = None) -> workers.CropStream | None:
        """Return the crops of worker processes for the steps of a stream; None if the images are on the device."""
        if self.resident:
            return None
        plan = workers.CropPlan(self.source, self.views, self.batch_size, stream, self.rows)
        return workers.CropStream(
            plan, self.device, workers.choose_workers(self._num_workers, self.device), stop
        )

    @property
    def problems(self) -> list[str]:
        """A line for each image that has been found unreadable."""
        return stores.describe_problems(self.source, self._problems)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, starting at any step without computing earlier steps.

        The order of images is a permutation drawn from (seed, epoch); the last, incomplete batch is dropped. Each
        process gets its block of every global batch.
        """
        first = (epoch if self.sets is None else epoch % self.sets) * self.steps_per_epoch
        batches = None
        for step in range(start_step, self.steps_per_epoch):
            batch = self._remembered.get(first + step)
            if batch is None:
                if batches is None:
                    batches = self._batches(
                        self.stream, first // self.steps_per_epoch, step, self._crops
                    )
                batch, seconds = self._side.batch(batches.__next__)
                self.wait_seconds += seconds
                batch = self._kept(batch)
            else:
                batches = None
            yield (
                batch
                if self.sets is None
                else replace(batch, step=epoch * self.steps_per_epoch + step)
            )

    def _kept(self, batch: Batch) -> Batch:
        """Apply `remember` to a new batch, and cache the result if there is memory for it."""
        if self.remember is not None:
            batch = self.remember(batch)
            self._room -= sum(crop.nbytes for crop in batch.crops)
            if self._room >= 0:
                self._remembered[batch.step] = batch
        return batch

    def passes(
        self, epoch: int, prepare: Callable[[Batch], Batch] = lambda batch: batch
    ) -> EpochPasses:
        """Return passes over the data for a method to use before the first step of an epoch.

        prepare: function that is applied to each batch of a pass.
        """
        return EpochPasses(self, epoch, prepare)

    def _batches(
        self,
        stream: Stream,
        epoch: int,
        start_step: int,
        crops: workers.CropStream | None,
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch of `stream`. crops: crops of worker processes; None if images are on the device."""
        if crops is None:
            order = workers.epoch_order(stream, epoch, len(self.source))
        for step in range(start_step, self.steps_per_epoch):
            number = epoch * self.steps_per_epoch + step
            own = stream.child("step", number)
            if crops is None:
                images, index = self.stored(order, step)
                made = self.views(images, own, self.rows)
                del images  # frees the images while the batch is in use
            else:
                cut, index, problems = crops.take(number)
                stores.check_problems(self.source, self._problems, self.tolerance, *problems)
                made = self.views.finish(cut, own, self.rows)
                del cut
            yield Batch(made, to_device(index, self.device), own, number)

    def stored(self, order: Tensor, step: int, rows: slice | None = None) -> tuple[Tensor, Tensor]:
        """Return the images of a step on the device, and their positions.

        rows: rows of the global batch (default: those of this process).
        """
        assert self.store is not None
        first = step * self.batch_size
        rows = rows or self.rows
        index = self.store.stand_in[order[first + rows.start : first + rows.stop]]
        index = to_device(index, self.device)
        return self.store.take(index), index

    def close(self) -> None:
        """End the worker processes, which otherwise end with the loader or the main process."""
        if self._crops is not None:
            self._crops.close()


class EpochPasses:
    """Passes over the data of a PretrainLoader before the first step of an epoch: `hexa.core.Passes`.

    prepare: function that is applied to each batch of a pass. labels: classes of all images, int64 [N] on the CPU, or
    None. stream: random stream for the method; it differs from the streams of the passes and of training steps.
    """

    def __init__(
        self, loader: PretrainLoader, epoch: int, prepare: Callable[[Batch], Batch]
    ) -> None:
        labels = loader.source.classes
        self.labels = None if labels is None else torch.from_numpy(labels)
        self._loader = loader
        self._stream = loader.stream.child("before epoch", epoch)
        self._prepare = prepare
        self.stream = self._stream.child("method")

    def views(self) -> Iterator[Batch]:
        """Yield this process's share of a pass, with new views and order, which are equal in every call.

        An incomplete last batch is dropped. `Batch.step` counts the batches of the pass.
        """
        loader = self._loader
        stream = self._stream.child("views")
        crops = loader._crop_stream(stream, stop=loader.steps_per_epoch)
        with nullcontext() if crops is None else closing(crops):
            yield from map(self._prepare, loader._batches(stream, 0, 0, crops))

    def images(self) -> Iterator[Batch]:
        """Yield this process's share of all readable images once, in order, as float [b, C, S, S].

        Images are prepared as in evaluation, at the size of the first views. Shares are blocks of positions whose
        lengths differ by at most one.
        """
        loader = self._loader
        stream = self._stream.child("images")
        count = len(loader.source)
        rank = processes.rank()
        world = processes.world_size()
        share = range(rank * count // world, (rank + 1) * count // world)
        for number, (images, index) in enumerate(self._read(share, loader.batch_size // world)):
            pixels = unit(to_device(images, loader.device))
            batch = Batch(
                (pixels,), to_device(index, loader.device), stream.child("batch", number), number
            )
            yield self._prepare(batch)

    def _read(self, share: range, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield readable images of `share`, prepared as in evaluation, and their positions."""
        loader = self._loader
        store = self._loader.store
        transform = EvaluationTransform(loader.views.config.size)
        if store is not None:
            readable = [position for position in share if position not in store.problems]
            for start in range(0, len(readable), batch_size):
                index = to_device(torch.tensor(readable[start : start + batch_size]), loader.device)
                yield transform(store.take(index)), index
            return
        how = (loader.device, loader._num_workers, loader._problems, loader.tolerance, share)
        yield from evaluation_batches(loader.source, transform, batch_size, *how)
