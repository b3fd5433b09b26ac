"""Labelled images in random crops and flips, epoch by epoch, for whatever is trained on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hexa.data import Source
from hexa.data.loaders import PretrainLoader, epoch_order
from hexa.data.views import Views, ViewsConfig
from hexa.evaluation.protocol import Task
from hexa.runtime.random import Stream


class AugmentedImages:
    """Random resized crops (0.08–1) and flips of all images of a labelled source once an epoch, in a drawn order.

    batch_size: as asked for, or all images if there are fewer. steps: batches an epoch; like the published loaders, the
    last may be smaller, but where workers decode, or below `smallest` images, it is left out, of other images every
    time (`notes`).
    """

    def __init__(self, task: Task, source: Source, batch_size: int, stream: Stream, smallest: int = 1) -> None:
        assert source.classes is not None, "a task for this has one label an image"
        views = Views(ViewsConfig.model_validate({"recipe": "crop-flip", "size": task.backbone.image_size}))
        self.batch_size = min(batch_size, len(source))
        self._labels = torch.from_numpy(source.classes).to(task.device)
        self._loader = PretrainLoader(source, views, self.batch_size, stream, task.device, task.num_workers)
        rest = len(source) % self.batch_size
        self._keeps_rest = self._loader.resident and rest >= max(1, smallest)
        self.steps = self._loader.steps_per_epoch + self._keeps_rest
        self.notes: list[str] = []
        if self.batch_size != batch_size:
            self.notes.append(f"batch_size {batch_size} is above the {len(source)} labelled images: all are a batch")
        if rest and not self._keeps_rest:
            self.notes.append(f"each epoch leaves out {rest} images, others every time, to keep batches whole")

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(images float [B, 3, S, S] in [0, 1], labels int64 [B]) of every batch, on the task's device."""
        for batch in self._loader.epoch(epoch):
            yield batch.crops[0], self._labels[batch.index]
        if self._keeps_rest:
            loader = self._loader
            assert loader.store is not None
            order = epoch_order(loader.stream, epoch, len(loader.source))
            index = loader.store.stand_in[order[loader.steps_per_epoch * self.batch_size :]].to(loader.device)
            images = loader.store.take(index)
            yield loader.views(images, loader.stream.child("last batch", epoch))[0], self._labels[index]

    def close(self) -> None:
        """End the workers, if there are any."""
        self._loader.close()
