"""Plans an adaptation: image size, and what is trained for how long in the given time on this machine."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from hexa import recipes
from hexa.adaptation import wording
from hexa.adaptation.choice import COMPROMISES, SPARE, Choice, choose, six
from hexa.adaptation.looking import Seen, features_of
from hexa.comparison import unlabelled
from hexa.comparison.labelled import labels_of
from hexa.config import ConfigError, UserError
from hexa.data import Source
from hexa.measure.costs import Costs, at_size, measure, memory_of
from hexa.nn.backbones import NetworkConfig, outline
from hexa.nn.image_size import network_at, rounded
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import Machine
from hexa.run.start import begin_from_weights
from hexa.runtime import processes
from hexa.weights import start as starts
from hexa.weights.pretrained import Backbone

#: Image sizes below the start's own that are tried.
SIZES = (448, 384, 320, 256, 224, 192, 160, 128, 96, 64)
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
#: Share of the time that the start's features may take at its own size, if that is larger than the result's.
NATIVE_SHARE = 0.1
#: Values of --time that a plan proposes, in minutes: the first above 1.3 times what is needed, since the load changes.
_MINUTES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 90)
_MARGIN = 1.3
#: Lines of metrics of a training, at least, if it has as many steps.
_LINES = 20
#: Images whose clusters the report shows.
_PICTURES = 500
#: Images on the comparison's page.
_TILES = 112
#: Seconds to draw both.
_DRAWING = 14.0
#: Share of the time from which pictures are left out.
_PICTURES_SHARE = 0.035
#: Share of the memory that training may take.
_ROOM = 0.5
#: Share of the memory for images or activations that are kept in it.
_RESIDENT = 0.25
#: Batch size that is tried at least, so that a step fits into memory.
_LEAST_BATCH = 16
#: Seconds to write the results, on an idle machine.
_END = 4.0
#: Seconds to fit the probes of both sides, on an idle machine: for each image, class and feature.
_PROBES = 6e-8
#: Seconds to import torch on an idle machine, to compare with what it took here.
_IMPORT = 6.0


#: Told what is being done.
Say = Callable[[str], object]


@dataclass(frozen=True)
class Budget:
    """The time for everything. begun: by `time.perf_counter`. imported: seconds that imports took, 0 if unknown."""

    seconds: float
    begun: float
    imported: float = 0.0

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.begun

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - self.spent

    def here(self, seconds: float) -> float:
        """The seconds on this machine, perhaps a busy one, of work that takes `seconds` on an idle one."""
        return seconds * max(1.0, self.imported / _IMPORT)


@dataclass(frozen=True)
class Plan:
    """An experiment, None if the time is not enough, and lines that describe it to the user.

    compared: images that start and result will be compared on. native: whether the start's features are taken at its
    own image size; else at the result's, since its own would take too much of the time.
    """

    experiment: Experiment | None
    lines: tuple[str, ...]
    compared: int = 0
    native: bool = True


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
        most = min(native, self.larger * size)
        return next(one for one in (*self.sizes, size) if one <= most)

    def at(self, size: int) -> Experiment:
        """The draft with views of this size."""
        return override(
            at_size(self.draft, size, self.fields), {"views.test_scale": self.used(size) / size}
        )

    def may_shrink(self, backbone: Backbone) -> bool:
        """True if views may be smaller than the images that the result is for.

        They may not where the user gives a size or the scale, nor for networks of few convolutions or of one size.
        """
        decided = {"views.size", "views.test_scale"} & self.fields.keys()
        return not decided and starts.convolves(backbone.network) and len(self.sizes) > 1

    def costs(self, *, partly: bool = True) -> Costs:
        """Time a few steps now, for one process where several share a step. partly: as for `measure`."""
        self.say("timing a few steps")
        costs = measure(self.draft, self.source, self.fields, partly=partly)
        resident = self.draft.training.resident_limit_bytes
        if "training.resident_limit_bytes" not in self.fields:
            resident = min(resident, int(_RESIDENT * memory_of(Machine.of(self.draft).device)))
        return replace(costs, resident=resident).shared(processes.helpers() + 1)

    def batch(self, costs: Costs, size: int, stages: int, most: int | None = None) -> int | None:
        """The largest batch, halved from `most` or the draft's, whose step fits into memory; None if none does.

        stages: that learn. A batch that the user gives is returned as it is.
        """
        batch = most or self.draft.batch_size
        if "batch_size" in self.fields:
            return self.draft.batch_size
        room = _ROOM * memory_of(Machine.of(self.draft).device) - costs.held
        while batch * costs.bytes(size, stages) > room and batch > _LEAST_BATCH:
            batch //= 2
        return batch if batch * costs.bytes(size, stages) <= room else None

    def fitting(self, costs: Costs, stages: int) -> list[int]:
        """Those of `sizes` at which a step fits into memory. Raises UserError if there are none."""
        sizes = [size for size in self.sizes if self.batch(costs, size, stages) is not None]
        if not sizes:
            size = self.sizes[-1]
            name = self.draft.network.name
            needed = costs.held + min(_LEAST_BATCH, self.draft.batch_size) * costs.bytes(
                size, stages
            )
            decided = "views.size" in self.fields or not self.by_clock
            remedy = "give a smaller --views.size" if decided else "begin with a smaller network"
            raise UserError(
                f"{name} at {size} px: a training step needs {needed / 1e9:.1f} GB, "
                f"more than half of the memory; {remedy}"
            )
        return sizes

    @property
    def by_clock(self) -> bool:
        """True if --time decides the length of the training, False if the user gives epochs or steps."""
        return not {"epochs", "max_steps"} & self.fields.keys()

    @property
    def sizes(self) -> list[int]:
        """The start's own image size, then smaller ones that its network accepts, unless the user has decided."""
        native = self.draft.views.size
        if "views.size" in self.fields or not self.by_clock:
            return [native]
        return [native, *smaller_sizes(self.draft.network.model_dump_json(), native)]

    def too_short(self, training: float, others: Callable[[float], float]) -> Plan:
        """The plan to keep the start, which names the minutes that would be enough.

        training: seconds for the least that is trained. others: --time in seconds -> seconds for all else.
        """
        every = itertools.chain(_MINUTES, itertools.count(120, 60))
        enough = (one for one in every if 60 * one >= _MARGIN * (training + others(60 * one)))
        return Plan(None, (f"images: {self.seen}", wording.too_short(next(enough))))


@functools.lru_cache(maxsize=4)
def smaller_sizes(network: str, native: int) -> tuple[int, ...]:
    """Those of `SIZES` below `native` that a network accepts, rounded to its patches. network: its configuration."""
    config = NetworkConfig.model_validate_json(network)
    sizes = dict.fromkeys(rounded(outline(config), size) for size in SIZES)
    return tuple(size for size in sizes if size < native and _accepts(config, size))


def _accepts(config: NetworkConfig, size: int) -> bool:
    with suppress(UserError):
        return bool(network_at(config, size))
    return False


def first_draft(
    recipe: str, backbone: str, data: str, count: int, fields: Mapping[str, Any]
) -> Experiment:
    """The experiment on `count` images without its views and length, at the start's own size.

    Raises ConfigError for another optimizer without its rate: the recipe's is the angle of Muon.
    """
    made = recipes.get(recipe)
    optimizer = fields.get("optimizer.name", "muon")
    rate = made.optimizer.learning_rate
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


def _batch(count: int) -> int:
    return min(128, 1 << (count // 4).bit_length() - 1)


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
    """Seconds to fit the probes, on an idle machine."""

    @property
    def native(self) -> bool:
        """Whether there is time for the start's features at its own image size."""
        at = self.costs.score(self.given.draft.views.size)
        affordable = self.compared * self.looks * at <= NATIVE_SHARE * self.given.budget.seconds
        return affordable or not self.given.by_clock

    def pictures(self, size: int) -> float:
        """To draw pictures for the report."""
        features = _PICTURES * self.costs.score(self.given.used(size))
        return self.given.budget.here(_DRAWING) + features + _TILES * self.costs.read

    def draws(self, size: int) -> bool:
        """Whether there is time for pictures."""
        return self.pictures(size) < _PICTURES_SHARE * self.given.budget.seconds

    def others(self, size: int) -> float:
        """For all but training on views of this size."""
        costs = self.costs
        used = self.given.used(size)
        budget = self.given.budget
        start = costs.score(self.given.draft.views.size if self.native else used)
        scored = self.compared * (self.looks * (start + costs.score(used)) + 4 * costs.read)
        drawn = self.pictures(size) if self.draws(size) else 0.0
        return scored + drawn + 1.5 * costs.setup + budget.here(_END + self.probes)

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
    costs = replace(given.costs(), again={}) if "start.view_sets" in fields else given.costs()
    learning = [few for few in costs.steps if few]
    fitting = given.fitting(costs, min(learning))
    backbone.to(Machine.of(draft).device)
    keeps = _Kept(given, backbone, costs)
    times = _times(given, costs, backbone.num_features)
    trainable = len(given.source) - round(draft.monitor.holdout * len(given.source))
    if given.by_clock:
        of_each_result = list({given.used(size): size for size in fitting}.values())
        chosen = choose(
            costs,
            of_each_result,
            trainable,
            times.room,
            keeps,
            given.seen.size,
            lambda size, few: given.batch(costs, size, few) is not None,
        )
    else:
        chosen = Choice(draft.views.size, max(learning), trainable, draft.epochs)
    if not chosen.passes:
        least = COMPROMISES[-1]
        images = min(trainable, least.images)
        training = six(costs, chosen.size, chosen.stages, images, least.sets) / SPARE
        return given.too_short(training, lambda _: times.others(chosen.size) + given.budget.spent)
    experiment = _experiment(given, costs, times, chosen, stages)
    share = keeps.shares.get(chosen.size)
    said = wording.lines(experiment, given.seen, chosen, stages, share, backbone.image_size)
    per_epoch = max(1, chosen.images // experiment.batch_size)
    passes = min(experiment.epochs, (experiment.max_steps or math.inf) / per_epoch)
    said += (
        wording.labels(given.labelled, given.source, times.compared),
        wording.length(experiment, passes, given.budget.seconds if given.by_clock else 0),
    )
    return Plan(experiment, said, times.compared, times.native)


def _experiment(
    given: Given, costs: Costs, times: _Times, chosen: Choice, stages: int
) -> Experiment:
    """The experiment that does what was chosen. stages: of the network."""
    draft = given.draft
    fields = given.fields
    size = chosen.size
    batch = given.batch(costs, size, chosen.stages, min(draft.batch_size, _batch(chosen.images)))
    batch = batch or draft.batch_size
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
    }
    if not {"monitor.keep_best", "monitor.until"} & fields.keys():
        # scores of few images on the way say less than the comparison of many at the end
        changes["monitor.knn_every"] = 0
    if given.by_clock:
        steps = max(1, int(chosen.passes * per_epoch))
        changes |= {
            "max_steps": steps,
            "training.max_seconds": times.room(size),
            "training.report": times.draws(size),
            "training.log_every": max(1, min(draft.training.log_every, steps // _LINES)),
        }
    return override(given.at(size), {k: v for k, v in changes.items() if k not in fields})
