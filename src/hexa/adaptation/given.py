"""The inputs of a plan: images, initial weights, time, and what the user has decided."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hexa import recipes
from hexa.adaptation import wording
from hexa.adaptation.looking import Seen
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
#: A proposed --time is this many times what is needed, since the load of the machine changes.
_MARGIN = 1.3
#: Share of the memory that training may take.
_ROOM = 0.5
#: Share of the memory for images or activations that are kept in it.
_RESIDENT = 0.25
#: Batch size that is tried at least, so that a step fits into memory.
_LEAST_BATCH = 16
#: Batch size of many images.
_BATCH = 128

#: Told what is being done.
Say = Callable[[str], object]


@dataclass(frozen=True)
class Budget:
    """The time for everything."""

    seconds: float
    begun: float
    """By `time.perf_counter`."""

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.begun

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - self.spent


@dataclass(frozen=True)
class Plan:
    """What will be trained, and how it will be compared."""

    experiment: Experiment | None
    """None if the time is not enough."""
    lines: tuple[str, ...]
    """The plan as the user reads it."""
    compared: int = 0
    """Images that start and result will be compared on."""


@dataclass(frozen=True)
class Given:
    """The inputs of a plan."""

    draft: Experiment
    source: Source
    seen: Seen
    pixels: Tensor
    """Some of the images at the start's size."""
    labelled: Source | None
    """Images to judge by, `source` itself if it has classes."""
    budget: Budget
    fields: Mapping[str, Any]
    """Fields of the experiment that the user has set, which are kept."""
    say: Say
    larger: float = 1.0
    """A result is for images of up to this many times the size of the views, which costs less than views of its size
    (compare FixRes, Touvron et al., NeurIPS 2019)."""

    def used(self, size: int) -> int:
        """The image size of the result for views of `size` pixels, at which it is judged too."""
        native = self.draft.views.size
        if "views.test_scale" in self.fields:
            return round(self.draft.views.test_scale * size)
        most = min(native, self.larger * size)
        return next(one for one in (*self.sizes, size) if one <= most)

    def at(self, size: int) -> Experiment:
        """The draft with views of this size."""
        scale = self.used(size) / size
        return override(at_size(self.draft, size, self.fields), {"views.test_scale": scale})

    def may_shrink(self, backbone: Backbone) -> bool:
        """True if views may be smaller than the images that the result is for.

        They may not if the user gives a size or the scale, nor for networks of few convolutions or of one size.
        """
        decided = {"views.size", "views.test_scale"} & self.fields.keys()
        return not decided and starts.convolves(backbone.network) and len(self.sizes) > 1

    def costs(self, *, partly: bool = True) -> Costs:
        """Time a few steps now, for one process where several share a step. partly: as for `measure`."""
        self.say("timing a few steps")
        costs = measure(self.draft, self.source, self.fields, partly=partly)
        resident = self.draft.training.resident_limit_bytes
        if "training.resident_limit_bytes" not in self.fields:
            resident = min(resident, int(_RESIDENT * self._memory))
        return replace(costs, resident=resident).shared(processes.helpers() + 1)

    @property
    def _memory(self) -> int:
        return memory_of(Machine.of(self.draft).device)

    def batch(self, costs: Costs, size: int, stages: int, most: int | None = None) -> int | None:
        """The largest batch, halved from `most` or the draft's, whose step fits into memory; None if none does.

        stages: that learn. A batch that the user gives is returned as it is.
        """
        batch = most or self.draft.batch_size
        if "batch_size" in self.fields:
            return self.draft.batch_size
        room = _ROOM * self._memory - costs.held
        while batch * costs.bytes(size, stages) > room and batch > _LEAST_BATCH:
            batch //= 2
        return batch if batch * costs.bytes(size, stages) <= room else None

    def fitting(self, costs: Costs, stages: int) -> list[int]:
        """Those of `sizes` at which a step fits into memory. Raises UserError if there are none."""
        sizes = [size for size in self.sizes if self.batch(costs, size, stages) is not None]
        if sizes:
            return sizes
        smallest = self.sizes[-1]
        batch = min(_LEAST_BATCH, self.draft.batch_size)
        needed = costs.held + batch * costs.bytes(smallest, stages)
        raise UserError(
            f"{self.draft.network.name} at {smallest} px: a training step needs {needed / 1e9:.1f} GB, more than half "
            "of the memory; give a smaller --views.size, or begin with a smaller network"
        )

    @property
    def by_clock(self) -> bool:
        """True if --time decides the length of the training, False if the user gives epochs or steps."""
        return not {"epochs", "max_steps"} & self.fields.keys()

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The start's own image size, then smaller ones that its network accepts, unless the user has decided."""
        native = self.draft.views.size
        if "views.size" in self.fields or not self.by_clock:
            return [native]
        network = self.draft.network
        sizes = dict.fromkeys(rounded(outline(network), size) for size in SIZES)
        smaller = [size for size in sizes if size < native and _accepts(network, size)]
        return [native, *smaller]

    def too_short(self, training: float, others: Callable[[float], float]) -> Plan:
        """The plan to keep the start, which names the minutes that would be enough.

        training: seconds for the least that is trained. others: --time in seconds -> seconds for all else.
        """
        minutes = itertools.count(1)
        enough = (one for one in minutes if 60 * one >= _MARGIN * (training + others(60 * one)))
        return Plan(None, (f"images: {self.seen}", wording.too_short(next(enough))))


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
    if optimizer != "muon" and "optimizer.learning_rate" not in fields:
        rate = made.optimizer.learning_rate
        remedy = f"give one for {optimizer} (--optimizer.learning_rate)"
        message = f"the recipe's, {rate:g}, is the angle of muon; {remedy}"
        raise ConfigError([("optimizer.learning_rate", message)])
    batch = min(made.batch_size, batch_of(count))
    changes = {"data": data, "start.weights": backbone, "batch_size": batch, **fields}
    return begin_from_weights(override(made, changes), {**fields, "start.weights": backbone})


def batch_of(count: int) -> int:
    """The batch size for a number of images: a power of two, so that an epoch has four steps or more."""
    return min(_BATCH, 1 << (count // 4).bit_length() - 1)
