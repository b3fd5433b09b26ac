"""Plans an adaptation: image size, and what is trained for how long in the given time on this machine."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from hexa import recipes
from hexa.adaptation import wording
from hexa.adaptation.choice import PASSES, SPARE, Choice, choose, six
from hexa.adaptation.looking import Seen, features_of, found_again
from hexa.comparison import unlabelled
from hexa.comparison.labelled import labels_of
from hexa.config import ConfigError, UserError
from hexa.data import Source
from hexa.measure.costs import Costs, at_size, measure, memory_of
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.tables import counted, format_duration
from hexa.run.build import Machine
from hexa.run.start import begin_from_weights
from hexa.runtime import processes
from hexa.weights import start as starts
from hexa.weights.pretrained import Backbone

#: Sizes below the start's own that are tried, and the share of its neighbourhoods that the start must keep there,
#: measured on as many images as take this many seconds, but on 40 or more.
SIZES, _KEPT, _LOOKING, _SEEN = (448, 384, 320, 256, 224, 192, 160, 128, 96, 64), 0.9, 1.0, 40
#: Where the start finds fewer than this share of 40 images again from a quarter of each, training can teach it more:
#: three sets had 8 to 40 % and gained 3 points of k-NN or more, three 78 to 95 and 0.8 at most (your-own-images.md).
_FAMILIAR = 0.55
#: The fewest images (or all) that six passes are worth making over.
_LEAST_IMAGES = 500
#: With this number of passes or more only the head learns in the first: a random head would damage the backbone.
_HEAD_FIRST = 3
#: On photographs as many of the last stages learn as hold this share of the weights.
_LAST_SHARE = 0.05
#: Most and fewest images in the comparison, these without labels, and the share of the time that one side may take.
_MOST, _LEAST, _SHARE = 2000, 200, 0.05
#: The minutes that a plan without enough time names: the first above 1.3 times what is needed, since the load changes.
_MINUTES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 90)
#: The fewest lines of metrics of a training that has as many steps.
_LINES = 20
#: Images whose clusters the report shows, those on the comparison's page, seconds to draw both, and the share of the
#: time from which they are left out.
_PICTURES, _TILES, _DRAWING, _PICTURES_SHARE = 500, 112, 14.0, 0.035
#: The share of the memory that a step may take, and the smallest batch that is tried to achieve it.
_ROOM, _LEAST_BATCH = 0.4, 16
#: Seconds of an idle machine that are not measured: to write the results, for each judged image, class and feature in
#: the probes of both sides, and to import torch, which is timed on this machine.
_END, _PROBES, _IMPORT = 4.0, 6e-8, 6.0


#: Told what is being done.
Say = Callable[[str], object]


@dataclass(frozen=True)
class Budget:
    """The time for everything. begun: by `time.perf_counter`. imported: seconds that imports took, 0 if unknown."""

    seconds: float
    begun: float
    imported: float = 0.0

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.perf_counter() - self.begun)

    def here(self, seconds: float) -> float:
        """The seconds on this machine, perhaps a busy one, of work that takes `seconds` on an idle one."""
        return seconds * max(1.0, self.imported / _IMPORT)


@dataclass(frozen=True)
class Plan:
    """An experiment, None if the time is not enough, and lines that describe it to the user.

    compared: images that start and result will be compared on.
    """

    experiment: Experiment | None
    lines: tuple[str, ...]
    compared: int = 0


@dataclass(frozen=True)
class Given:
    """The inputs of a plan.

    pixels: some of the images at the start's size. labelled: images to judge by, `source` itself if it has classes.
    fields: those set by the user, which are kept. larger: a result is for images of up to this many times the size of
    the views, which costs less than views of its size (compare FixRes, Touvron et al., NeurIPS 2019).
    """

    draft: Experiment
    source: Source
    seen: Seen
    pixels: Tensor
    labelled: Source | None
    budget: Budget
    fields: Mapping[str, Any]
    say: Say
    larger: float = 1.0

    def used(self, size: int) -> int:
        """The image size of the result for views of `size` pixels, at which it is judged too."""
        native = self.draft.views.size
        if "views.test_scale" in self.fields:
            return round(self.draft.views.test_scale * size)
        return next(one for one in (native, *SIZES, size) if one <= min(native, self.larger * size))

    def at(self, size: int) -> Experiment:
        """The draft with views of this size."""
        return override(
            at_size(self.draft, size, self.fields), {"views.test_scale": self.used(size) / size}
        )

    def may_shrink(self, backbone: Backbone) -> bool:
        """True if views may be smaller than the images that the result is for.

        They may not where the user gives a size or the scale, nor for networks of few convolutions or of one size.
        """
        decided = {"views.size", "views.test_scale"} & self.fields.keys() or not starts.convolves(
            backbone.network
        )
        smaller = [size for size in SIZES if size < backbone.image_size and not decided]
        return bool(smaller) and takes(backbone, smaller[0])

    def costs(self, *, partly: bool = True) -> Costs:
        """Time a few steps now, for one process where several share a step. partly: as for `measure`."""
        self.say("timing a few steps")
        return measure(self.draft, self.source, self.fields, partly=partly).shared(
            processes.helpers() + 1
        )

    @property
    def by_clock(self) -> bool:
        """True if --time decides the length of the training, False if the user gives epochs or steps."""
        return not {"epochs", "max_steps"} & self.fields.keys()

    @property
    def sizes(self) -> list[int]:
        """The start's own image size, then smaller ones, unless the user has decided."""
        native, decided = self.draft.views.size, "views.size" in self.fields or not self.by_clock
        return [native, *(size for size in SIZES if size < native and not decided)]

    def too_short(self, training: float, others: Callable[[float], float], what: str) -> Plan:
        """The plan to keep the start, which names the minutes that would be enough.

        training: seconds for the least that is worth a try, `what`. others: --time in seconds -> seconds for all else.
        """
        every = itertools.chain(_MINUTES, itertools.count(120, 60))
        minutes = next(one for one in every if 60 * one >= 1.3 * (training + others(60 * one)))
        said = f"not enough time: {what} would take {format_duration(training)} of training as fast as this machine is "
        said += f"now, and all else {format_duration(others(60 * minutes))}, so the start is kept; from "
        said += f"{counted(minutes, 'minute')} on, with a third to spare, it is worth a try"
        return Plan(None, (f"images: {self.seen}", said))


def first_draft(
    recipe: str, backbone: str, data: str, count: int, fields: Mapping[str, Any]
) -> Experiment:
    """The experiment on `count` images without its views and length, at the start's own size.

    Raises ConfigError for another optimizer without its rate: the recipe's is the angle of Muon.
    """
    made = recipes.get(recipe)
    optimizer, rate = fields.get("optimizer.name", "muon"), made.optimizer.learning_rate
    if optimizer != "muon" and "optimizer.learning_rate" not in fields:
        remedy = f"give one for {optimizer} (--optimizer.learning_rate)"
        raise ConfigError(
            [("optimizer.learning_rate", f"the recipe's, {rate:g}, is the angle of muon; {remedy}")]
        )
    batch = min(made.batch_size, _batch(count))
    changes: dict[str, Any] = {"data": data, "start.weights": backbone, "batch_size": batch}
    return begin_from_weights(
        override(made, changes | dict(fields)), {**fields, "start.weights": backbone}
    )


def takes(backbone: Backbone, size: int) -> bool:
    """True if the backbone accepts images of `size` × `size` pixels, which many ViTs do for a single size."""
    with suppress(UserError):
        return bool(backbone.prepared(size=size))
    return False


def _batch(count: int) -> int:
    return min(128, 1 << (count // 4).bit_length() - 1)


def plan(given: Given) -> Plan:
    """Measure, and plan."""
    backbone, fields = starts.of(given.draft.start), given.fields
    stages = starts.count_stages(backbone.network)
    if given.seen.domain == "photos" and stages > 1 and "start.trainable_stages" not in fields:
        # the whole network lost accuracy (docs/your-own-images.md)
        last = starts.last_stages(backbone.network, _LAST_SHARE)
        given = replace(given, draft=override(given.draft, {"start.trainable_stages": last}))
    draft, source, labelled, by_clock = given.draft, given.source, given.labelled, given.by_clock
    budget, seconds, native = given.budget, given.budget.seconds, draft.views.size
    costs = replace(given.costs(), again={}) if "start.view_sets" in fields else given.costs()
    given.say("looking at the images with the start")
    backbone.to(Machine.of(draft).device)
    many = (
        max(_SEEN, int(_LOOKING / costs.score(backbone.image_size))) if given.sizes[1:] else _SEEN
    )
    some, shares = given.pixels[:many], dict[int, float]()
    features = features_of(backbone, some)
    again, of = found_again(backbone, some[:_SEEN], features[:_SEEN]), len(some[:_SEEN])
    half = 196 * math.sqrt(again * (1 - again) / of)
    outlook = f"shown a quarter of an image, the start finds it among {of} in {again:.0%} (± {half:.0f}) of cases, so "
    outlook += (
        "a gain is likely, given enough passes" if again < _FAMILIAR else "a gain, if any, is small"
    )

    def keeps(size: int) -> bool:
        """Whether most neighbourhoods of the start are the same at this image size."""
        given.say(f"checking whether {given.used(size)} px is enough")
        with suppress(UserError):  # raised by a ViT of a fixed size
            there = features_of(backbone.prepared(size=given.used(size)), some)
            shares[size] = float(unlabelled.kept(features, there).mean())
        return shares.get(size, 0.0) >= _KEPT

    # without labels in two views and mixed, too, of images that decide nothing
    looks, probes, compared = 4, 0.0, min(_LEAST, len(source))
    if labelled is not None:
        looks, each = 1, costs.score(native) + 2 * costs.read
        compared = min(_MOST, max(_LEAST, int(_SHARE * seconds / each)), len(labelled))
        probes = _PROBES * compared * len(np.unique(labels_of(labelled))) * backbone.num_features

    def pictures(size: int) -> float:
        """Seconds to draw pictures for the report."""
        return (
            budget.here(_DRAWING) + _PICTURES * costs.score(given.used(size)) + _TILES * costs.read
        )

    def after(size: int) -> float:
        """Seconds for all but training."""
        drawn = pictures(size) if pictures(size) < _PICTURES_SHARE * seconds else 0.0
        scored = compared * (
            looks * (costs.score(native) + costs.score(given.used(size))) + 4 * costs.read
        )
        return scored + drawn + 1.5 * costs.setup + budget.here(_END + probes)

    def room(size: int) -> float:
        """Seconds for training at this size."""
        return budget.left - after(size)

    trainable = len(source) - round(draft.monitor.holdout * len(source))
    smallest = list(
        {given.used(size): size for size in given.sizes}.values()
    )  # views of each size of the result
    chosen = choose(costs, smallest, trainable, room, keeps, given.seen.size)
    if not by_clock:
        chosen = Choice(native, max(costs.steps), trainable, draft.epochs)
    size = chosen.size
    least = min(trainable, _LEAST_IMAGES)
    if chosen.images < least:
        training = six(costs, size, chosen.stages, least) / SPARE
        return given.too_short(
            training, lambda _: seconds - room(size), f"{PASSES} passes over {least:,} images"
        )

    batch = (
        draft.batch_size if "batch_size" in fields else min(draft.batch_size, _batch(chosen.images))
    )
    room_for = _ROOM * memory_of(Machine.of(draft).device)
    needed = costs.bytes(size, chosen.stages)
    while "batch_size" not in fields and needed * batch > room_for and batch > _LEAST_BATCH:
        batch //= 2
    per_epoch = chosen.images // batch
    epochs = max(1, math.ceil(chosen.passes)) if by_clock else draft.epochs
    changes: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch,
        "start.freeze_backbone": int(
            min(epochs * per_epoch, draft.max_steps or math.inf) >= _HEAD_FIRST * per_epoch
        ),
        "start.trainable_stages": None if chosen.stages == stages else chosen.stages,
        "start.view_sets": chosen.sets,
        "monitor.holdout": round(1 - chosen.images / len(source), 4),
    }
    if not {"monitor.keep_best", "monitor.until"} & fields.keys():
        # scores of few images on the way say less than the comparison of many at the end
        changes["monitor.knn_every"] = 0
    if by_clock:
        changes |= {
            "max_steps": max(1, int(chosen.passes * per_epoch)),
            "training.max_seconds": room(size),
            "training.report": pictures(size) < _PICTURES_SHARE * seconds,
            "training.log_every": max(
                1, min(draft.training.log_every, int(chosen.passes * per_epoch) // _LINES)
            ),
        }
    experiment = override(given.at(size), {k: v for k, v in changes.items() if k not in fields})
    said = wording.lines(
        experiment, given.seen, chosen, stages, shares.get(size), backbone.image_size, outlook
    )
    passes = min(experiment.epochs, (experiment.max_steps or math.inf) / max(1, per_epoch))
    said += (
        wording.labels(labelled, source, compared),
        wording.length(experiment, passes, seconds if by_clock else 0),
    )
    return Plan(experiment, said, compared)
