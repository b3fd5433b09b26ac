"""Chooses what is trained for how long, from what an image costs on this machine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hexa.data.loading.loaders import RESIDENT_LIMIT_BYTES
from hexa.measure.costs import Costs

#: The fewest passes over the images, and the share of the time that they may take by the measurement.
PASSES, SPARE = 6, 0.9
#: Where maps can be remembered: how many passes draw views of their own, as a share of those that would fit if all did,
#: and at least; where this number of passes would fit, all do.
_DRAWN, _LEAST_SETS, _ENOUGH = 0.7, 4, 60


@dataclass(frozen=True)
class Choice:
    """Views of `size` pixels; the last `stages` of the network learn from `images` images, `passes` times.

    sets: passes with views of their own, which later ones repeat; None if all have.
    """

    size: int
    stages: int
    images: int
    passes: float
    sets: int | None = None


def choose(
    costs: Costs,
    sizes: Sequence[int],
    images: int,
    room: Callable[[int], float],
    keeps: Callable[[int], bool],
    shorter_side: int = 10**6,
) -> Choice:
    """The plan that fits into the seconds that `room` leaves for training at a size. Its `images` may be too few.

    sizes: of views, the largest first. A smaller one is taken if the start keeps its neighbourhoods there, and six
    passes do not fit at the larger one or images (`shorter_side` pixels) would be enlarged. Then passes are cut to six,
    two of which may repeat views; then the stages that learn; then the images. The head learns alone in the first pass.
    """
    learning = sorted((stages for stages in costs.steps if stages), reverse=True)
    size = sizes[0]
    for smaller in sizes[1:]:
        if (
            six(costs, size, learning[0], images) <= SPARE * room(size) and size <= shorter_side
        ) or not keeps(smaller):
            break
        size = smaller
    stages = next(
        (few for few in learning if six(costs, size, few, images) <= SPARE * room(size)),
        learning[-1],
    )
    images = max(
        0,
        bisect_right(
            range(images + 1), SPARE * room(size), key=lambda n: six(costs, size, stages, n)
        )
        - 1,
    )
    left = room(size) / max(1, images) - costs.train(size, 0)
    passes = 1 + left / costs.train(size, stages)
    if stages in costs.again and images and passes < _ENOUGH:
        sets = min(
            max(math.ceil(_DRAWN * passes), _LEAST_SETS), _room_for(costs, size, stages, images)
        )
        repeated = (left - (sets - 1) * costs.train(size, stages)) / costs.repeat(size, stages)
        if sets >= _LEAST_SETS and sets + repeated > passes:
            return Choice(size, stages, images, sets + repeated, sets)
    return Choice(size, stages, images, passes)


def six(costs: Costs, size: int, stages: int, images: int) -> float:
    """Seconds for six passes over the images. Two of them repeat views where the maps of four can be remembered."""
    each = costs.train(size, 0) + (PASSES - 1) * costs.train(size, stages)
    if _room_for(costs, size, stages, images) >= _LEAST_SETS:
        each -= (PASSES - _LEAST_SETS) * max(
            0.0, costs.train(size, stages) - costs.repeat(size, stages)
        )
    return images * each


def _room_for(costs: Costs, size: int, stages: int, images: int) -> int:
    """The number of sets, each of a map of every image, that fit into memory; 0 if maps can't be remembered."""
    each = costs.again[stages][1] * (size / costs.size) ** 2 if stages in costs.again else math.inf
    return int(RESIDENT_LIMIT_BYTES / (max(1, images) * each))
