"""Plans a hardening: the largest image size at which enough views fit into the time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hexa.adaptation import wording
from hexa.adaptation.choice import SPARE
from hexa.adaptation.given import Given, Plan
from hexa.measure.costs import Costs
from hexa.recipes.experiment import Experiment, override
from hexa.weights import start as starts

STEPS = "hard_examples.adversarial.steps"
STEP_SIZE = "hard_examples.adversarial.step_size"
#: Share of the time for the attacks of the verdict.
ATTACKING = 0.16
#: Forward passes to attack an image; 560 if every attack fails.
FORWARDS = 400
#: Bounds on the number of attacked images.
ATTACKED = (24, 500)
#: Bounds on the number of images for clean accuracy.
_JUDGED = (200, 2000)
#: Share of the time for the features of these images.
_JUDGING = 0.02
#: Number of interpolated weights that are evaluated; rarely more, if both halves of the labels back off several times.
_SCORED = 7
#: Number of views, over all passes, that a larger size must leave time for.
_ENOUGH = 30_000
#: Number of views, over all passes, below which a size below `_SMALLEST` is chosen.
_WANTED = 3000
#: Minimum number of views, over all passes.
_LEAST = 1000
#: Smallest size of views as a share of the native resolution, unless the time is short.
_SMALLEST = 3 / 7
#: A training of more steps uses two attack steps: a training of 2,284 steps overfitted to a one-step attack
#: (docs/decisions/adapt-and-harden.md).
_LONG = 700
#: Step size of the two-step attack, as a share of ε.
_OF_TWO = 0.75
#: Network passes per training step with one attack step (1 + 3 + 3), divided by those with two attack steps.
_SLOWER = 7 / 10
#: Seconds to write the results; an estimate.
_END = 5.0


@dataclass(frozen=True)
class _Times:
    """Seconds that the parts of a hardening take."""

    given: Given
    costs: Costs
    spent: float
    """Seconds that have passed before training."""

    def judged(self, size: int, seconds: float) -> int:
        """Return the number of images for clean accuracy if --time is `seconds`."""
        each = self.costs.score(self.given.used(size))
        affordable = int(np.clip(_JUDGING * seconds / each, *_JUDGED))
        return min(affordable, len(self.given.labelled or self.given.source))

    def others(self, size: int, seconds: float) -> float:
        """Return the seconds for everything except training at view size `size`, if --time is `seconds`."""
        costs = self.costs
        used = costs.score(self.given.used(size))
        clean = (1 + _SCORED) * used + 3 * costs.read + costs.score(self.given.draft.views.size)
        attacked = max(ATTACKING * seconds, ATTACKED[0] * FORWARDS * used)
        fixed = self.spent + 1.5 * costs.setup + _END
        return fixed + attacked + self.judged(size, seconds) * clean

    def room(self, size: int) -> float:
        """Return the seconds for training at view size `size`."""
        seconds = self.given.budget.seconds
        return SPARE * (seconds - self.others(size, seconds))


def plan(given: Given, strength: float) -> Plan:
    """Plan a training at the largest size, up to native resolution, that leaves time for enough images; see `choose`."""
    costs = given.costs(partly=False)
    stages = max(costs.steps)
    seconds = given.budget.seconds
    times = _Times(given, costs, given.budget.spent)
    start = starts.of(given.draft.start)
    # raises UserError if the network does not accept the given size
    start.prepared(size=given.used(given.draft.views.size))
    size, images = choose(costs, given.fitting(costs, stages), times.room, given.seen.size)
    if given.by_clock and images < _LEAST:
        training = _LEAST * costs.train(size, stages) / SPARE
        return given.too_short(training, functools.partial(times.others, size))
    batch = given.batch(costs, size, stages) or given.draft.batch_size
    given = replace(given, draft=override(given.draft, {"batch_size": batch}))
    passes = images / len(given.source)
    if not given.by_clock:
        most = given.draft.max_steps or math.inf
        passes = min(given.draft.epochs, most / (len(given.source) // batch))
    changes = _attack(given, strength, passes)
    if changes and given.by_clock:
        passes *= _SLOWER
    experiment = _experiment(given, costs, times, size, passes, changes)
    judged = times.judged(size, seconds)
    lines = _lines(given, experiment, strength, passes, judged)
    return Plan(experiment, lines, judged)


def _attack(given: Given, strength: float, passes: float) -> dict[str, Any]:
    """Return the fields of a two-step attack if the training is long and uses Muon; else no fields."""
    steps = passes * (len(given.source) // given.draft.batch_size)
    decided = {STEPS, STEP_SIZE} & given.fields.keys()
    if steps <= _LONG or given.draft.optimizer.name != "muon" or decided:
        return {}
    return {STEPS: 2, STEP_SIZE: _OF_TWO * strength}


def _experiment(
    given: Given,
    costs: Costs,
    times: _Times,
    size: int,
    passes: float,
    changes: dict[str, Any],
) -> Experiment:
    """Return the experiment with views of `size` pixels and with `changes`."""
    changes = {
        **changes,
        "monitor.knn_every": 0,
        "training.report": False,
        "training.resident_limit_bytes": costs.resident,
    }
    # crops show objects at the scale of the final image size, and reduce overfitting (docs/decisions/adapt-and-harden.md)
    least = (size / given.used(size)) ** 2
    if least < 1 and "views.scale" not in given.fields:
        changes["views.scale"] = (least, 1.0)
        changes["views.ratio"] = (3 / 4, 4 / 3)
    if given.by_clock:
        per_epoch = len(given.source) // given.draft.batch_size
        changes["epochs"] = math.ceil(passes)
        changes["max_steps"] = max(1, int(passes * per_epoch))
        changes["training.max_seconds"] = times.room(size) / SPARE
    kept = {path: value for path, value in changes.items() if path not in given.fields}
    return override(given.at(size), kept)


def _lines(
    given: Given, experiment: Experiment, strength: float, passes: float, judged: int
) -> tuple[str, ...]:
    """Return the printed lines of the plan."""
    views = experiment.views
    shown = "crops of the images" if views.scale[0] < 1 else "the images"
    if views.flip_probability > 0:
        shown += ", mirrored or not"
    if views.jitter_probability * views.contrast > 0:
        shown += ", in changing contrast"
    shown += f", {views.size} px"
    if views.test_size != views.size:
        shown += f"; the result is for {views.test_size} px"
    labels = "labels: none, so the loss of accuracy is unknown; the verdict measures how far features move"
    if given.labelled is not None:
        labels = wording.labels(given.labelled, given.source, judged)
    length = wording.length(experiment, passes, given.budget.seconds if given.by_clock else 0)
    attack = experiment.hard_examples["adversarial"].model_dump()
    if attack["steps"] > 1:
        length += f", {attack['steps']} attack steps"
    return (
        f"images: {given.seen}",
        f"method: teacher, from {experiment.start.weights}: a copy of the weights learns to give attacked views "
        f"(ε = {strength:g}/255) the features of the clean images",
        f"views: {shown}",
        labels,
        length,
    )


def choose(
    costs: Costs, sizes: Sequence[int], room: Callable[[int], float], shorter_side: int
) -> tuple[int, float]:
    """Return the view size and the number of images that fit into the time, summed over all passes.

    sizes: the native resolution first, then smaller sizes. The result is the first size, down to three sevenths of the
    native resolution, that leaves time for 30,000 images and does not enlarge images (of `shorter_side` pixels) more
    than the smallest size does. If fewer than 3,000 images fit at the smallest of these sizes, the result is the first
    smaller size at which 3,000 images fit.
    """
    stages = max(costs.steps)
    usual = [size for size in sizes if size >= _SMALLEST * sizes[0]]
    for size in usual:
        images = room(size) / costs.train(size, stages)
        if images >= _ENOUGH and size <= max(shorter_side, min(usual)):
            break
    for smaller in sizes[len(usual) :]:
        if images >= _WANTED:
            break
        size = smaller
        images = room(size) / costs.train(size, stages)
    return size, max(0.0, images)
