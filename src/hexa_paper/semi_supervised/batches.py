"""Batches of weak views: labelled images first, then unlabelled ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hexa.core import Batch
from hexa.data.loading.loaders import PretrainLoader
from hexa.data.sources.source import Labels, Subset
from hexa.data.views.making import Views, ViewsConfig
from hexa.evaluation.protocol import Task
from hexa.ops import draws
from hexa.runtime.precision import to_device
from hexa.runtime.random import Stream

#: How far a weak view is moved at most, as a share of the side (Sohn et al. 2020).
SHIFT = 0.125


class Batches:
    """B_l labelled images and μ·B_l of all images, whose labels nobody looks at, in weak views: mirrored and moved.

    A weak view is the (centre) square of the image, mirrored in half of the cases if that is wanted and moved by up to
    an eighth of its side, as published for CIFAR. Images come in an order drawn for every pass
    over them; few are repeated until they fill a batch.
    """

    def __init__(
        self,
        task: Task,
        labelled: Labels,
        batch_size: int,
        ratio: int,
        stream: Stream,
        mirrored: bool = True,
    ) -> None:
        self.stream = stream
        self.size = task.backbone.image_size
        self._loaders = []
        self._rows = []
        fields = {
            "recipe": "crop-flip",
            "size": self.size,
            "scale": (1.0, 1.0),
            "ratio": (1.0, 1.0),
        }
        views = Views(
            ViewsConfig.model_validate(fields if mirrored else fields | {"flip_probability": 0.0})
        )
        parts = {
            "labelled": (labelled, batch_size),
            "unlabelled": (np.arange(len(task.fit)), ratio * batch_size),
        }
        for name, (images, count) in parts.items():
            rows = np.tile(images, -(-count // len(images)))
            how = (views, count, stream.child(name), task.device, task.num_workers)
            self._loaders.append(PretrainLoader(Subset(task.fit, rows), *how))
            self._rows.append(to_device(torch.from_numpy(rows), task.device))

    def steps(self, count: int) -> Iterator[Batch]:
        """The batches of `count` steps; `index` is the position among the images to learn from."""
        endless = (
            itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
            for loader in self._loaders
        )
        for step, parts in enumerate(itertools.islice(zip(*endless, strict=True), count)):
            stream = self.stream.child("step", step)
            index = torch.cat(
                [rows[part.index] for rows, part in zip(self._rows, parts, strict=True)]
            )
            crops = torch.cat([part.crops[0] for part in parts])
            yield Batch((self._moved(crops, stream.child("shift")),), index, stream, step)

    def _moved(self, crops: Tensor, stream: Stream) -> Tensor:
        most = int(SHIFT * self.size)
        by = draws.uniforms(len(crops), 2, stream).mul(2 * most + 1).long() - most
        return shifted(crops, by).contiguous(memory_format=torch.channels_last)

    def close(self) -> None:
        """End the workers, if there are any."""
        for loader in self._loaders:
            loader.close()


def shifted(images: Tensor, by: Tensor) -> Tensor:
    """Images [B, C, H, W] moved down and to the right by whole pixels `by`, int64 [B, 2]; borders are reflected.

    A random crop of the image with reflected padding. Every |by| is less than the side.
    """
    places = []
    for size, moved in zip(images.shape[2:], by.to(images.device).unbind(1), strict=True):
        seen = (torch.arange(size, device=images.device) - moved[:, None]).abs()  # [B, size]
        places.append(torch.minimum(seen, 2 * (size - 1) - seen))
    rows, columns = places
    image = torch.arange(len(images), device=images.device)[:, None, None]
    return images.movedim(1, 3)[image, rows[:, :, None], columns[:, None, :]].movedim(3, 1)
