"""The inputs of a plan: images, initial weights, time limit, and the options of the user."""

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
from hexa.config import UserError, field_error
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

#: Candidate image sizes below the native resolution of the initial weights.
SIZES = (448, 384, 320, 256, 224, 192, 160, 128, 96, 64)
#: A proposed --time is the needed time multiplied by this factor, because the load of a machine changes.
_MARGIN = 1.3
#: Share of the memory that training may take.
_ROOM = 0.5
#: Share of the memory for cached images or activations.
_RESIDENT = 0.25
#: The batch size is halved down to this value until a step fits into memory.
_LEAST_BATCH = 16
#: Batch size if there are many images.
_BATCH = 128

#: Prints the current stage of the work.
Say = Callable[[str], object]


@dataclass(frozen=True)
class Budget:
    """The time limit of the whole command."""

    seconds: float
    begun: float
    """Start of the time limit, as a value of `time.perf_counter`."""

    @property
    def spent(self) -> float:
        """Seconds since the command began."""
        return time.perf_counter() - self.begun

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - self.spent


@dataclass(frozen=True)
class Plan:
    """The experiment to train, its description for the user, and the size of the evaluation."""

    experiment: Experiment | None
    """None if the time is too short."""
    lines: tuple[str, ...]
    """The printed lines of the plan."""
    compared: int = 0
    """Number of images on which initial weights and result will be evaluated."""


@dataclass(frozen=True)
class Given:
    """The inputs of a plan.

    draft: the experiment without its view size and length. seen: facts about the images. say: prints a stage.
    """

    draft: Experiment
    source: Source
    seen: Seen
    pixels: Tensor
    """A sample of the images at the native resolution of the initial weights, [n, C, S, S]."""
    labelled: Source | None
    """Labelled images for the evaluation; `source` itself if it has classes."""
    budget: Budget
    fields: Mapping[str, Any]
    """Fields of the experiment that the user has set; a plan does not change them."""
    say: Say
    larger: float = 1.0
    """Image size of the result divided by the size of the views, at most. Small views cost less than views of the
    final image size (compare FixRes, Touvron et al., NeurIPS 2019)."""

    def used(self, size: int) -> int:
        """Return the image size of the result, and of its evaluation, for views of `size` pixels."""
        native = self.draft.views.size
        if "views.test_scale" in self.fields:
            return round(self.draft.views.test_scale * size)
        most = min(native, self.larger * size)
        return next(one for one in (*self.sizes, size) if one <= most)

    def at(self, size: int) -> Experiment:
        """Return the draft with views of `size` pixels."""
        scale = self.used(size) / size
        return override(at_size(self.draft, size, self.fields), {"views.test_scale": scale})

    def may_shrink(self, backbone: Backbone) -> bool:
        """True if views may be smaller than the images of the result.

        False if the user gives a size or a scale, if the network has few convolutions, or if it accepts one size only.
        """
        decided = {"views.size", "views.test_scale"} & self.fields.keys()
        return not decided and starts.convolves(backbone.network) and len(self.sizes) > 1

    def costs(self, *, partly: bool = True) -> Costs:
        """Time a few steps, and return the costs for each of the processes that share a step. partly: see `measure`."""
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
        """Return the largest batch size, halved from `most` or the draft's, whose step fits into memory; None if none fits.

        stages: number of stages that are trained. A batch size that the user gives is returned unchanged.
        """
        batch = most or self.draft.batch_size
        if "batch_size" in self.fields:
            return self.draft.batch_size
        room = _ROOM * self._memory - costs.held
        while batch * costs.bytes(size, stages) > room and batch > _LEAST_BATCH:
            batch //= 2
        return batch if batch * costs.bytes(size, stages) <= room else None

    def fitting(self, costs: Costs, stages: int) -> list[int]:
        """Return the `sizes` at which a step fits into memory. Raises UserError if there are none."""
        sizes = [size for size in self.sizes if self.batch(costs, size, stages) is not None]
        if sizes:
            return sizes
        smallest = self.sizes[-1]
        batch = min(_LEAST_BATCH, self.draft.batch_size)
        needed = costs.held + batch * costs.bytes(smallest, stages)
        raise UserError(
            f"{self.draft.network.name} at {smallest} px: a training step needs {needed / 1e9:.1f} GB, more than half "
            "of the memory; give a smaller --views.size or a smaller network"
        )

    @property
    def by_clock(self) -> bool:
        """True if --time sets the length of the training; False if the user gives epochs or steps."""
        return not {"epochs", "max_steps"} & self.fields.keys()

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The native resolution, then smaller sizes that the network accepts, unless the user sets size or length."""
        native = self.draft.views.size
        if "views.size" in self.fields or not self.by_clock:
            return [native]
        network = self.draft.network
        sizes = dict.fromkeys(rounded(outline(network), size) for size in SIZES)
        smaller = [size for size in sizes if size < native and _accepts(network, size)]
        return [native, *smaller]

    def too_short(self, training: float, others: Callable[[float], float]) -> Plan:
        """Return the plan that keeps the initial weights and proposes a longer --time.

        training: seconds of the shortest training. others: --time in seconds -> seconds for everything except training.
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
    """Return the experiment on `count` images at native resolution, before views and length are planned.

    Raises ConfigError for an optimizer other than Muon without a learning rate, because the recipe's rate is an angle.
    """
    made = recipes.get(recipe)
    optimizer = fields.get("optimizer.name", "muon")
    if optimizer != "muon" and "optimizer.learning_rate" not in fields:
        rate = made.optimizer.learning_rate
        remedy = f"give one for {optimizer} (--optimizer.learning_rate)"
        raise field_error(
            "optimizer.learning_rate",
            f"{rate:g}, the rate of the recipe, is an angle for muon; {remedy}",
        )
    batch = min(made.batch_size, batch_of(count))
    changes = {"data": data, "start.weights": backbone, "batch_size": batch, **fields}
    return begin_from_weights(override(made, changes), {**fields, "start.weights": backbone})


def batch_of(count: int) -> int:
    """Return the batch size for `count` images: a power of two with four steps or more in an epoch."""
    return min(_BATCH, 1 << (count // 4).bit_length() - 1)
