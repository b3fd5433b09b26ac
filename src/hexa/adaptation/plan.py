"""Plans an adaptation within a time limit: image size, trainable stages, images and passes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from hexa.adaptation import wording
from hexa.adaptation.choice import COMPROMISES, SPARE, Choice, choose, six
from hexa.adaptation.given import Given, Plan, batch_of
from hexa.adaptation.looking import features_of
from hexa.comparison import unlabelled
from hexa.comparison.labelled import labels_of
from hexa.config import UserError
from hexa.measure.costs import Costs
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import Machine
from hexa.weights import start as starts
from hexa.weights.pretrained import Backbone

#: Share of neighbourhoods that the initial weights must keep at a smaller image size.
_KEPT = 0.9
#: Minimum number of images to measure that share.
_SEEN = 40
#: Seconds to measure that share on more images.
_LOOKING = 1.0
#: Smaller sizes are not tried if measuring that share on the minimum number of images takes more than this share of
#: --time.
_LOOKING_SHARE = 0.02
#: From this number of passes on, the first pass trains the head alone, because a random head damages the backbone.
_HEAD_FIRST = 3
#: Maximum number of images in the evaluation.
_MOST = 2000
#: Minimum number of images in the evaluation, and the number without labels.
_LEAST = 200
#: Share of the time for the features of one backbone in the evaluation.
_SHARE = 0.05
#: Minimum number of logged steps of a training.
_LINES = 20
#: Seconds to write the results.
_END = 4.0
#: Seconds to fit the probes of both backbones, per image, class and feature.
_PROBES = 6e-8


@dataclass
class _Kept:
    """Checks whether the initial weights keep most neighbourhoods at a smaller image size, if there is time for it."""

    given: Given
    backbone: Backbone
    costs: Costs
    shares: dict[int, float] = field(default_factory=dict)
    """Share of kept neighbourhoods, by view size."""
    here: Tensor | None = None
    """Features at native resolution."""

    def __call__(self, size: int) -> bool:
        native = self.costs.score(self.backbone.image_size)
        budget = self.given.budget
        if _SEEN * native > max(_LOOKING, _LOOKING_SHARE * budget.seconds):
            return False
        used = self.given.used(size)
        self.given.say(f"checking whether {used} px is enough")
        some = self.given.pixels[: max(_SEEN, int(_LOOKING / native))]
        if self.here is None:
            self.here = features_of(self.backbone, some)
        with suppress(UserError):  # the network does not accept the size from `views.test_scale`
            there = features_of(self.backbone.prepared(size=used), some)
            self.shares[size] = float(unlabelled.kept(self.here, there).mean())
        return self.shares.get(size, 0.0) >= _KEPT


@dataclass(frozen=True)
class _Times:
    """Seconds that the parts of an adaptation take."""

    given: Given
    costs: Costs
    compared: int
    """Number of images in the evaluation."""
    looks: int
    """Number of feature extractions per image and backbone."""
    probes: float
    """Seconds to fit the probes."""

    def others(self, size: int) -> float:
        """Return the seconds for everything except training at view size `size`."""
        costs = self.costs
        used = costs.score(self.given.used(size))
        start = costs.score(self.given.draft.views.size)
        scored = self.compared * (self.looks * (start + used) + 4 * costs.read)
        return scored + 1.5 * costs.setup + _END + self.probes

    def room(self, size: int) -> float:
        """Return the seconds for training at view size `size`."""
        return self.given.budget.left - self.others(size)


def _times(given: Given, costs: Costs, num_features: int) -> _Times:
    """Return the times of an evaluation with labels or, without labels, of label-free statistics."""
    if given.labelled is None:
        return _Times(given, costs, min(_LEAST, len(given.source)), 4, 0.0)
    each = costs.score(given.draft.views.size) + 2 * costs.read
    most = min(_MOST, max(_LEAST, int(_SHARE * given.budget.seconds / each)))
    compared = min(most, len(given.labelled))
    classes = len(np.unique(labels_of(given.labelled)))
    return _Times(given, costs, compared, 1, _PROBES * compared * classes * num_features)


def plan(given: Given) -> Plan:
    """Time some steps, and return the plan that fits the time."""
    backbone = starts.of(given.draft.start)
    fields = given.fields
    stages = starts.count_stages(backbone.network)
    if given.seen.domain == "photos" and stages > 1 and "start.trainable_stages" not in fields:
        # training the whole network lost accuracy (docs/results.md)
        last = starts.last_stages(backbone.network)
        given = replace(given, draft=override(given.draft, {"start.trainable_stages": last}))
    draft = given.draft
    costs = given.costs()
    if "start.view_sets" in fields:
        costs = replace(costs, again={})
    backbone.to(Machine.of(draft).device)
    keeps = _Kept(given, backbone, costs)
    times = _times(given, costs, backbone.num_features)
    trainable = len(given.source) - round(draft.monitor.holdout * len(given.source))
    chosen = _choice(given, costs, times, keeps, trainable)
    if not chosen.passes:
        least = COMPROMISES[-1]
        images = min(trainable, least.images)
        training = six(costs, chosen.size, chosen.stages, images, least.sets) / SPARE
        return given.too_short(training, lambda _: times.others(chosen.size) + given.budget.spent)
    experiment = _experiment(given, costs, times, chosen, stages)
    share = keeps.shares.get(chosen.size)
    per_epoch = max(1, chosen.images // experiment.batch_size)
    passes = min(experiment.epochs, (experiment.max_steps or math.inf) / per_epoch)
    lines = (
        *wording.lines(experiment, given.seen, chosen, stages, share, backbone.image_size),
        wording.labels(given.labelled, given.source, times.compared),
        wording.length(experiment, passes, given.budget.seconds if given.by_clock else 0),
    )
    return Plan(experiment, lines, times.compared)


def _choice(given: Given, costs: Costs, times: _Times, keeps: _Kept, images: int) -> Choice:
    """Return the training that fits the time, or the one of the given length. images: number of training images."""
    learning = [few for few in costs.steps if few]
    fitting = given.fitting(costs, min(learning))
    if not given.by_clock:
        return Choice(given.draft.views.size, max(learning), images, given.draft.epochs)
    of_each_result = {given.used(size): size for size in fitting}
    return choose(
        costs,
        list(of_each_result.values()),
        images,
        times.room,
        keeps,
        given.seen.size,
        lambda size, few: given.batch(costs, size, few) is not None,
    )


def _experiment(
    given: Given, costs: Costs, times: _Times, chosen: Choice, stages: int
) -> Experiment:
    """Return the experiment of the chosen training. stages: number of stages of the network."""
    draft = given.draft
    fields = given.fields
    size = chosen.size
    most = min(draft.batch_size, batch_of(chosen.images))
    batch = given.batch(costs, size, chosen.stages, most) or draft.batch_size
    per_epoch = chosen.images // batch
    epochs = max(1, math.ceil(chosen.passes)) if given.by_clock else draft.epochs
    steps = min(epochs * per_epoch, draft.max_steps or math.inf)
    changes: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch,
        "start.freeze_backbone": int(steps >= _HEAD_FIRST * per_epoch),
        "start.trainable_stages": None if chosen.stages == stages else chosen.stages,
        "start.view_sets": chosen.sets,
        "monitor.holdout": round(1 - chosen.images / len(given.source), 4),
        "training.resident_limit_bytes": costs.resident,
        "training.report": False,
    }
    if not {"monitor.keep_best", "monitor.until"} & fields.keys():
        # scores of few images during training say less than the final evaluation
        changes["monitor.knn_every"] = 0
    if given.by_clock:
        steps = max(1, int(chosen.passes * per_epoch))
        changes["max_steps"] = steps
        changes["training.max_seconds"] = times.room(size)
        changes["training.log_every"] = max(1, min(draft.training.log_every, steps // _LINES))
    kept = {path: value for path, value in changes.items() if path not in fields}
    return override(given.at(size), kept)
