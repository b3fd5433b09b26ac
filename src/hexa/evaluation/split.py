"""Drawing labelled images class by class, from a named stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.runtime.random import Stream

Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]


def _shuffled(labels: Labels, stream: Stream) -> dict[int, Labels]:
    """The positions of each class in a drawn order."""
    generator = np.random.default_rng(stream.integer())
    return {int(label): generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)}


def stratified_part(labels: Labels, share: float, stream: Stream) -> Mask:
    """Whether each image is in a part of `share` of every class; bool [N]. A class keeps at least one image outside.

    Where images show several classes, labels [N, C], the part is drawn from all images alike.
    """
    if labels.ndim > 1:
        labels = np.zeros(len(labels), dtype=np.int64)
    held = np.zeros(len(labels), dtype=np.bool_)
    for rows in _shuffled(labels, stream).values():
        held[rows[: min(round(share * len(rows)), len(rows) - 1)]] = True
    return held


def draw_share(labels: Labels, share: float, stream: Stream) -> Labels:
    """Positions of a part of `share` of every class, at least one image of each, in order."""
    parts = [rows[: max(1, round(share * len(rows)))] for rows in _shuffled(labels, stream).values()]
    return np.sort(np.concatenate(parts))


def folds(labels: Labels, count: int, stream: Stream) -> list[Labels]:
    """`count` disjoint parts that together hold every image of classes with two or more; fewer where classes are small.

    A class of one image can't be held out and is in no fold. Empty if there is nothing to hold out.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    for rows in _shuffled(labels, stream).values():
        if len(rows) > 1:
            for number, row in enumerate(rows):
                parts[number % count].append(int(row))
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts if part]


def draw_per_class(labels: Labels, count: int, stream: Stream) -> Labels:
    """Positions of `count` images of every class. Raises UserError if a class has fewer."""
    drawn = _shuffled(labels, stream)
    for label, rows in drawn.items():
        if len(rows) < count:
            raise UserError(f"class {label} has {len(rows)} labelled images, {count} a class are wanted; ask for fewer")
    return np.concatenate([rows[:count] for rows in drawn.values()])
