"""Chooses what is trained for how long, from what an image costs on this machine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hexa.measure.costs import Costs

#: Passes over the images, at least.
PASSES = 6
#: Share of the time that six passes may take, as measured.
SPARE = 0.9
#: Share of the passes that have views of their own if activations are remembered; the others repeat these.
_DRAWN = 0.7
#: Number of passes that have views of their own, at least.
_LEAST_SETS = 4
#: From this number of passes on, all have views of their own.
_ENOUGH = 60


class Compromise(NamedTuple):
    """The least that a training is begun for."""

    smallest: float
    """Size of the views, as a share of the largest."""
    sets: int
    """Passes with views of their own; the others repeat these."""
    images: int


#: Tried in this order if the time is short; in each of them the head and the last stages learn.
COMPROMISES = (Compromise(3 / 7, 4, 500), Compromise(3 / 7, 2, 250), Compromise(0.0, 2, 100))


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


Room = Callable[[int], float]


def choose(
    costs: Costs,
    sizes: Sequence[int],
    images: int,
    room: Room,
    keeps: Callable[[int], bool],
    shorter_side: int = 10**6,
    fits: Callable[[int, int], bool] = lambda size, stages: True,
) -> Choice:
    """The plan that fits into the seconds that `room` leaves for training at a size. Its `images` may be too few.

    sizes: of views, the largest first. A smaller one is taken if the start keeps its neighbourhoods there, and six
    passes do not fit at the larger one or images (`shorter_side` pixels) would be enlarged. Then passes are cut to six,
    two of which may repeat views; then the stages that learn; then the images. If fewer than 500 are left, the first of
    `COMPROMISES` that fits is taken, at the largest size. The head learns alone in the first pass.
    fits: (size, stages) -> whether a step fits into memory; it must for the last stages at any of the sizes.
    """
    learning = sorted((stages for stages in costs.steps if stages), reverse=True)
    quarter = max(1, learning[0] // 4)
    size = sizes[0]
    for smaller in sizes[1:]:
        whole = six(costs, size, learning[0], images) <= SPARE * room(size)
        if (whole and size <= shorter_side) or not keeps(smaller):
            break
        size = smaller
    wanted = [few for few in learning if few >= quarter and fits(size, few)] or learning[-1:]
    stages = next(
        (few for few in wanted if six(costs, size, few, images) <= SPARE * room(size)), wanted[-1]
    )
    most = affordable(costs, size, stages, images, room, _LEAST_SETS)
    if most >= min(images, COMPROMISES[0].images):
        return _with_passes(costs, size, stages, most, room, _LEAST_SETS)
    stages = learning[-1]
    for least in COMPROMISES:
        for size in [one for one in sizes if one >= least.smallest * sizes[0]]:
            most = affordable(costs, size, stages, images, room, least.sets)
            if most >= min(images, least.images):
                return _with_passes(costs, size, stages, most, room, least.sets)
    return Choice(size, stages, most, 0.0)


def affordable(
    costs: Costs, size: int, stages: int, images: int, room: Room, least_sets: int
) -> int:
    """The number of images, of `images`, that six passes over them leave time for."""
    return max(
        0,
        bisect_right(
            range(images + 1),
            SPARE * room(size),
            key=lambda count: six(costs, size, stages, count, least_sets),
        )
        - 1,
    )


def _with_passes(
    costs: Costs, size: int, stages: int, images: int, room: Room, least_sets: int
) -> Choice:
    """As many passes over these images as fit, six at least, with views of their own in as many as that allows."""
    left = room(size) / images - costs.train(size, 0)
    passes = 1 + left / costs.train(size, stages)
    if stages in costs.again and passes < _ENOUGH:
        most = min(
            max(math.ceil(_DRAWN * passes), least_sets), _room_for(costs, size, stages, images)
        )
        for sets in range(most, least_sets - 1, -1):
            drawn = (sets - 1) * costs.train(size, stages)
            total = sets + (left - drawn) / costs.repeat(size, stages)
            if total > passes and (total >= PASSES or sets == least_sets):
                return Choice(size, stages, images, total, sets)
    return Choice(size, stages, images, passes)


def six(costs: Costs, size: int, stages: int, images: int, least_sets: int = _LEAST_SETS) -> float:
    """Seconds for six passes over the images. All but `least_sets` of them repeat views if activations fit in memory."""
    each = costs.train(size, 0) + (PASSES - 1) * costs.train(size, stages)
    if _room_for(costs, size, stages, images) >= least_sets:
        each -= (PASSES - least_sets) * max(
            0.0, costs.train(size, stages) - costs.repeat(size, stages)
        )
    return images * each


def _room_for(costs: Costs, size: int, stages: int, images: int) -> int:
    """The number of sets, each of a map of every image, that fit into memory; 0 if maps can't be remembered."""
    if stages not in costs.again:
        return 0
    each = costs.again[stages][1] * (size / costs.size) ** 2
    return int(costs.resident / (max(1, images) * each))
