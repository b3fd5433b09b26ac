"""Plans an adaptation: image size, and what is trained for how long in the given time on this machine."""

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

#: Share of its neighbourhoods that the start must keep at a smaller size.
_KEPT = 0.9
#: Images that this is measured on, at least.
_SEEN = 40
#: Seconds to look at images, if that is time for more of them.
_LOOKING = 1.0
#: Share of the time that a look at the fewest images may take; else smaller sizes are not compared.
_LOOKING_SHARE = 0.02
#: With this number of passes or more only the head learns in the first: a random head would damage the backbone.
_HEAD_FIRST = 3
#: Images in the comparison, at most.
_MOST = 2000
#: Images in the comparison, at least, and without labels.
_LEAST = 200
#: Share of the time that the features of one side of the comparison may take.
_SHARE = 0.05
#: Lines of metrics of a training, at least, if it has as many steps.
_LINES = 20
#: Seconds to write the results.
_END = 4.0
#: Seconds to fit the probes of both sides: for each image, class and feature.
_PROBES = 6e-8


@dataclass
class _Kept:
    """Whether the start keeps most of its neighbourhoods at a smaller image size, as far as there is time to look."""

    given: Given
    backbone: Backbone
    costs: Costs
    shares: dict[int, float] = field(default_factory=dict)
    """The share that is kept, by size of the views."""
    here: Tensor | None = None
    """Features at the start's own size."""

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
        with suppress(UserError):  # a size by `views.test_scale` that the network does not accept
            there = features_of(self.backbone.prepared(size=used), some)
            self.shares[size] = float(unlabelled.kept(self.here, there).mean())
        return self.shares.get(size, 0.0) >= _KEPT


@dataclass(frozen=True)
class _Times:
    """Seconds that the parts of an adaptation take."""

    given: Given
    costs: Costs
    compared: int
    """Images in the comparison."""
    looks: int
    """Features of an image that it takes of each side."""
    probes: float
    """Seconds to fit the probes."""

    def others(self, size: int) -> float:
        """For all but training on views of this size."""
        costs = self.costs
        used = costs.score(self.given.used(size))
        start = costs.score(self.given.draft.views.size)
        scored = self.compared * (self.looks * (start + used) + 4 * costs.read)
        return scored + 1.5 * costs.setup + _END + self.probes

    def room(self, size: int) -> float:
        """For training at this size."""
        return self.given.budget.left - self.others(size)


def _times(given: Given, costs: Costs, num_features: int) -> _Times:
    """The times of a comparison by labels, or without them in two views and mixed, of images that decide nothing."""
    if given.labelled is None:
        return _Times(given, costs, min(_LEAST, len(given.source)), 4, 0.0)
    each = costs.score(given.draft.views.size) + 2 * costs.read
    most = min(_MOST, max(_LEAST, int(_SHARE * given.budget.seconds / each)))
    compared = min(most, len(given.labelled))
    classes = len(np.unique(labels_of(given.labelled)))
    return _Times(given, costs, compared, 1, _PROBES * compared * classes * num_features)


def plan(given: Given) -> Plan:
    """Measure, and plan."""
    backbone = starts.of(given.draft.start)
    fields = given.fields
    stages = starts.count_stages(backbone.network)
    if given.seen.domain == "photos" and stages > 1 and "start.trainable_stages" not in fields:
        # the whole network lost accuracy (docs/results.md)
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
    """What fits the time, or what the user's length says. images: those that may be learned from."""
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
    """The experiment that does what was chosen. stages: of the network."""
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
        # scores of few images on the way say less than the comparison of many at the end
        changes["monitor.knn_every"] = 0
    if given.by_clock:
        steps = max(1, int(chosen.passes * per_epoch))
        changes["max_steps"] = steps
        changes["training.max_seconds"] = times.room(size)
        changes["training.log_every"] = max(1, min(draft.training.log_every, steps // _LINES))
    kept = {path: value for path, value in changes.items() if path not in fields}
    return override(given.at(size), kept)
