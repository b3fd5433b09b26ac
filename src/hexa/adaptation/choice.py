"""Chooses view size, trainable stages, images and passes from the measured cost of an image."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hexa.measure.costs import Costs

#: Minimum number of passes over the images.
PASSES = 6
#: Share of the time that six passes may take, by the timed steps.
SPARE = 0.9
#: Share of the passes that draw new views if activations are cached; the other passes repeat earlier views.
_DRAWN = 0.7
#: Minimum number of passes that draw new views.
_LEAST_SETS = 4
#: From this number of passes on, every pass draws new views.
_ENOUGH = 60


class Compromise(NamedTuple):
    """The smallest training that is accepted if the time is short."""

    smallest: float
    """Smallest size of the views, as a share of the largest."""
    sets: int
    """Passes that draw new views; the other passes repeat them."""
    images: int
    """Minimum number of images."""


#: Tried in this order if the time is short. Each trains the head and the last stages.
COMPROMISES = (Compromise(3 / 7, 4, 500), Compromise(3 / 7, 2, 250), Compromise(0.0, 2, 100))


@dataclass(frozen=True)
class Choice:
    """A training of the last `stages` stages on `images` images, `passes` times, with views of `size` pixels.

    sets: number of passes that draw new views, which later passes repeat; None if every pass draws new views.
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
    """Return the training that fits into the seconds that `room` leaves at a view size.

    The returned `images` may be too few; `passes` is then 0.
    sizes: candidate view sizes, the largest first. A smaller size is chosen if the initial weights keep their
    neighbourhoods at it (`keeps`), and if six passes do not fit at the larger size or the larger size would enlarge the
    images (`shorter_side` pixels). If the time is still short, passes are cut to six, two of which may repeat views;
    then fewer stages are trained; then fewer images are used. If fewer than 500 images would be left, the first of
    `COMPROMISES` that fits is chosen, at the largest size. The first pass trains the head alone.
    fits: (size, stages) -> True if a step fits into memory. It must be True for the last stages at every size.
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
    """Return the largest number of images, up to `images`, for which six passes fit into the time."""
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
    """Return the training with the most passes that fit (six or more), and new views in as many of them as possible."""
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
    """Return the seconds for six passes over the images.

    If cached activations fit into memory, all but `least_sets` passes repeat views.
    """
    each = costs.train(size, 0) + (PASSES - 1) * costs.train(size, stages)
    if _room_for(costs, size, stages, images) >= least_sets:
        each -= (PASSES - least_sets) * max(
            0.0, costs.train(size, stages) - costs.repeat(size, stages)
        )
    return images * each


def _room_for(costs: Costs, size: int, stages: int, images: int) -> int:
    """Return the number of passes whose activations fit into memory; 0 if activations cannot be cached."""
    if stages not in costs.again:
        return 0
    each = costs.again[stages][1] * (size / costs.size) ** 2
    return int(costs.resident / (max(1, images) * each))
