"""Photographs with their objects as a detector is fed: batches by orientation, resized whole, flipped at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from hexa.config import UserError, some
from hexa.data.loading.store import readable
from hexa.data.loading.workers import Problems, epoch_order
from hexa.data.sources.decode import DecodeError
from hexa.data.sources.source import Source, Subset, digest
from hexa.data.sources.voc import VOCSource
from hexa.runtime.random import Stream
from hexa_paper.detection.boxes import Boxes, read
from hexa_paper.detection.detector import Objects


class Joined(Source):
    """The images of several sources with the same classes, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.places = [(source, index) for source in sources for index in range(len(source))]
        self.name = " + ".join(source.name for source in sources)
        self.split = sources[0].split
        self.class_names = sources[0].class_names
        self.splits = [self.split]
        self.paths = [path for source in sources for path in source.paths]
        self.fingerprint = digest(*(source.fingerprint for source in sources))
        self.max_image_pixels = sources[0].max_image_pixels

    def files(self) -> list[str | Path]:
        return [
            file
            for source in dict.fromkeys(source for source, _ in self.places)
            for file in source.files()
        ]

    def decode(self, index: int) -> Tensor:
        source, position = self.places[index]
        return source.decode(position)


def _annotation(source: Source, index: int) -> Path:
    """The annotation file of an image. Raises UserError if the source is not VOC."""
    if isinstance(source, Subset):
        return _annotation(source.source, int(source.rows[index]))
    if isinstance(source, Joined):
        return _annotation(*source.places[index])
    if isinstance(source, VOCSource):
        return source.root / f"Annotations/{Path(source.paths[index]).stem}.xml"
    raise UserError(f"data '{source.name}': has no boxes; detection needs voc:PATH/VOCdevkit")


def boxes_of(source: Source) -> list[Boxes]:
    """The objects of every image. Raises UserError if the source has no boxes or some annotations cannot be read."""
    files = [_annotation(source, index) for index in range(len(source))]
    objects = []
    problems = []
    for file in files:
        try:
            objects.append(read(file, source.class_names or []))
        except UserError as error:
            problems.append(str(error))
    if problems:
        listed = f"{len(problems)} annotations cannot be read: {some(problems, '; ')}"
        remedy = "repair them, or remove their images from the lists in ImageSets/Main"
        raise UserError(f"{source!r}: {listed}; {remedy}")
    return objects


def batches(wide: Sequence[bool], batch_size: int, count: int, stream: Stream) -> Tensor:
    """Positions of the images of `count` batches, int64 [count, batch_size], each of one orientation.

    Images come in an order of their own every epoch and wait until a batch of their orientation is full, so that little
    is padded (Detectron2 does so with the images of each GPU).
    """
    made: list[list[int]] = []
    waiting: dict[bool, list[int]] = {True: [], False: []}
    epoch = 0
    while len(made) < count:
        for position in epoch_order(stream, epoch, len(wide)).tolist():
            same = waiting[wide[position]]
            same.append(position)
            if len(same) == batch_size:
                made.append(same.copy())
                same.clear()
        epoch += 1
    return torch.tensor(made[:count])


def resized(image: Tensor, shorter: int, longest: int) -> Tensor:
    """uint8 [3, H, W] resized to a shorter side of `shorter` pixels, or a longer one of `longest` if that is less.

    Bilinear, antialiased.
    """
    high, wide = image.shape[1:]
    scale = min(shorter / min(high, wide), longest / max(high, wide))
    size = (max(1, int(high * scale + 0.5)), max(1, int(wide * scale + 0.5)))
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


@dataclass
class TrainingBatches(Dataset[tuple[list[Tensor], list[Objects], Problems]]):
    """Batch n: images uint8, their objects, and what could not be read; a function of the stream alone."""

    source: Source
    boxes: Sequence[Boxes]
    order: Tensor
    shorter: Sequence[int]
    longest: int
    stream: Stream

    def __getitem__(self, number: int) -> tuple[list[Tensor], list[Objects], Problems]:
        generator = self.stream.child("views", number).generator()
        images = list[Tensor]()
        objects = list[Objects]()
        problems = Problems()
        for wanted in self.order[number].tolist():
            side = self.shorter[int(torch.randint(len(self.shorter), (), generator=generator))]
            position, image = readable(self.source, wanted, self.source.decode, problems)
            view = resized(image, side, self.longest)
            boxes = scaled(self.boxes[position].boxes, image.shape[1:], view.shape[1:])
            if torch.rand((), generator=generator) < 0.5:
                view = view.flip(2)
                boxes[:, [0, 2]] = view.shape[2] - boxes[:, [2, 0]]
            images.append(view)
            objects.append({"boxes": boxes, "labels": self.boxes[position].labels + 1})
        return images, objects, problems


@dataclass
class TestImages(Dataset[tuple[int, Tensor | None, tuple[int, int], str]]):
    """n, image n at the size of the test or None, (H, W) of the photograph itself, and the reason if image n is missing."""

    __test__ = False  # or pytest would collect it

    source: Source
    shorter: int
    longest: int

    def __getitem__(self, index: int) -> tuple[int, Tensor | None, tuple[int, int], str]:
        try:
            image = self.source.decode(index)
        except DecodeError as error:
            return index, None, (0, 0), str(error)
        return (
            index,
            resized(image, self.shorter, self.longest),
            (int(image.shape[1]), int(image.shape[2])),
            "",
        )


def scaled(boxes: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Boxes [n, 4] of an image of (H, W) pixels as they lie in the same image at another size."""
    across = after[1] / before[1]
    down = after[0] / before[0]
    return boxes * boxes.new_tensor((across, down, across, down))
