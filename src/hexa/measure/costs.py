"""Seconds and bytes of training and scoring on this machine, measured by a few small steps."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hexa.core import Batch, Method
from hexa.data import Source
from hexa.data.loading.loaders import RESIDENT_LIMIT_BYTES
from hexa.data.loading.workers import choose_workers
from hexa.data.sources.source import Subset
from hexa.nn.backbones import outline
from hexa.nn.image_size import rounded
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import (
    Machine,
    build_loader,
    build_method,
    build_objective,
    build_optimizer,
    kernels,
    remembering,
    setting_of,
)
from hexa.run.start import begin_from_weights
from hexa.runtime.allocator import return_freed_memory
from hexa.runtime.cores import usable_cores
from hexa.runtime.memory import usable_memory
from hexa.training.step import prepared, step as train_step
from hexa.weights import start

#: On a CPU steps are timed at this size at most, in pixels.
_SIZE = 128
#: Pixels of a batch that is timed; four times as many if one kind of step is timed, since few images take longer each.
_PIXELS = 4 * 128**2
#: Seconds for which a step is timed.
_SECONDS = 0.1


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of one image on this machine, at `size` pixels; both grow with the area of the views.

    read: to decode an image and cut its views, at any size. steps: forward and backward, by the number of the network's
    last stages that learn, 0 for the head alone; the largest number is all that may learn. updates: the optimizer's
    part of a step, divided by the batch, by the same number and at any size. again: a step on maps that are remembered
    (`start.view_sets`), and their bytes, by the same number; none where they can't be. look: features alone. memory:
    bytes of a step where all of that learns. held: bytes of this process besides, such as weights and the optimizer's
    state. resident: bytes for images or maps that are kept. setup: seconds to build a run, once.
    """

    size: int
    read: float
    steps: Mapping[int, float]
    look: float
    memory: float = 0.0
    setup: float = 0.0
    updates: Mapping[int, float] = field(default_factory=dict)
    again: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    held: float = 0.0
    resident: int = RESIDENT_LIMIT_BYTES

    def train(self, size: int, stages: int) -> float:
        """Seconds of training on an image once."""
        return (
            self.read + self.updates.get(stages, 0.0) + self.steps[stages] * (size / self.size) ** 2
        )

    def repeat(self, size: int, stages: int) -> float:
        """Seconds of training on the remembered maps of an image once."""
        return self.updates.get(stages, 0.0) + self.again[stages][0] * (size / self.size) ** 2

    def run(self, experiment: Experiment, images: int) -> float:
        """Seconds of a whole training on that number of images.

        The epochs in which the head learns alone cost less only if `measure` timed such steps (`partly`).
        """
        epochs = experiment.epochs
        size = experiment.views.size
        alone = min(epochs, experiment.start.freeze_backbone)
        an_image = alone * self.train(size, min(self.steps)) + (epochs - alone) * self.train(
            size, max(self.steps)
        )
        return self.setup + an_image * min(
            images, (experiment.max_steps or math.inf) * experiment.batch_size / epochs
        )

    def score(self, size: int) -> float:
        """Seconds for the features of an image that is decoded already."""
        return self.look * (size / self.size) ** 2

    def bytes(self, size: int, stages: int) -> float:
        """Bytes of an image in a training step: maps are kept for the stages that gradients reach."""
        head = self.steps.get(0, 0.0)
        back = self.steps[stages] - head
        whole = self.steps[max(self.steps)] - head
        return self.memory * (size / self.size) ** 2 * max(0.1, min(1.0, back / max(whole, 1e-9)))

    def shared(self, processes: int) -> Costs:
        """The costs of each of several processes that share the images of a step."""
        steps = {stages: seconds / processes for stages, seconds in self.steps.items()}
        again = {
            stages: (seconds / processes, size / processes)
            for stages, (seconds, size) in self.again.items()
        }
        return replace(
            self,
            read=self.read / processes,
            steps=steps,
            memory=self.memory / processes,
            again=again,
        )


def at_size(draft: Experiment, size: int, fields: Iterable[str]) -> Experiment:
    """The experiment at another size of its views, and of its network where that has only one."""
    if size == draft.views.size:
        return draft
    return begin_from_weights(
        override(draft, {"views.size": size, "start.sha256": None}), [*fields, "views.size"]
    )


def measure(
    draft: Experiment, source: Source, fields: Collection[str], *, partly: bool = True
) -> Costs:
    """Time steps of a few images at a small size; on a GPU, which many images at once suit better, those of the run.

    partly: also steps in which only the last stages learn, or the head alone.
    """
    machine = Machine.of(draft)
    begin = time.perf_counter()
    small = machine.device.type == "cpu"
    most = rounded(outline(draft.network), _SIZE)
    size = min(draft.views.size, most) if small else draft.views.size
    most = (
        min(draft.batch_size, max(4, _PIXELS * (1 if partly else 4) // size**2))
        if small
        else draft.batch_size
    )
    count = next(
        (n for n in range(most, 3, -1) if draft.batch_size % n == 0), most
    )  # so that its parts divide a queue
    experiment = override(
        at_size(draft, size, fields), {"batch_size": count, "training.num_workers": 0}
    )
    some = Subset(
        source,
        np.unique(np.linspace(0, len(source) - 1, min(len(source), 4 * count)).round().astype(int)),
    )
    with kernels(experiment.training.deterministic), torch.random.fork_rng(devices=[]):
        method = build_method(experiment, setting_of(experiment, len(some)), machine, filled=True)
        objective = build_objective(experiment, method, machine)
        setup = time.perf_counter() - begin
        begin = time.perf_counter()
        loader = build_loader(experiment, some, machine)
        if loader.resident:  # the run decodes all images first
            setup += (time.perf_counter() - begin) * len(source) / len(some)
        optimizer = build_optimizer(experiment, method, loader.steps_per_epoch)
        with closing(loader):

            def draw() -> Batch:
                return prepared(next(iter(loader.epoch(0))), experiment.training.channels_last)

            begin = time.perf_counter()
            batch = draw()
            read = (
                time.perf_counter() - begin if small else _seconds(draw, machine.device)
            )  # a GPU first loads kernels
            read /= count * _readers(draft, machine, loader.resident)
            ready = optimizer.total_steps - 1  # the last step, in which all learns

            def train(batch: Batch = batch) -> None:
                train_step(objective, optimizer, batch, ready)

            def update() -> None:
                for parameter in optimizer.parameters:
                    parameter.grad = (
                        torch.zeros_like(parameter) if parameter.requires_grad else None
                    )
                optimizer.step(ready)

            train()  # not timed, nor its memory taken: the optimizer's state is made
            memory = peak_bytes(train, machine.device) / count
            held = held_bytes(machine.device)
            steps = dict[int, float]()
            updates = dict[int, float]()
            again = dict[int, tuple[float, float]]()
            every = _learning(method, draft, "start.trainable_stages" in fields)
            for stages in every if partly else [max(every)]:
                learning = every[stages]
                for parameter, learns in learning.items():
                    parameter.requires_grad_(learns)
                alone = _seconds(update, machine.device)  # of few images as of many
                steps[stages] = max(0.0, _seconds(train, machine.device) - alone) / count
                updates[stages] = alone / draft.batch_size
                if (
                    stages
                    and (trunk := remembering(experiment, method, machine, learning)) is not None
                ):
                    maps = trunk(batch).repeated(
                        max(1, draft.batch_size // count)
                    )  # few images say little of a head
                    seconds = max(
                        0.0, _seconds(functools.partial(train, maps), machine.device) - alone
                    )
                    again[stages] = (
                        seconds / len(maps),
                        sum(crop.nbytes for crop in maps.crops) / len(maps),
                    )
                    trunk.remove()

            @torch.no_grad()
            def look() -> None:
                method.eval()
                with machine.autocast():
                    method.backbone(batch.crops[0])

            look()
            return Costs(
                size,
                read,
                steps,
                _seconds(look, machine.device) / count,
                memory,
                setup,
                updates,
                again,
                held,
            )


def _readers(experiment: Experiment, machine: Machine, resident: bool) -> int:
    """Processes or cores that decode and cut beside the training."""
    workers = 0 if resident else choose_workers(experiment.training.num_workers, machine.device)
    return max(1, usable_cores() if workers and machine.device.type == "cpu" else workers)


def _learning(
    method: Method, experiment: Experiment, decided: bool
) -> dict[int, dict[nn.Parameter, bool]]:
    """Which parameters of the backbone learn, by the number of its last stages: all, half, a quarter, the last, none.

    Only all and none if the number is `decided`; all are then those of `start.trainable_stages`, if it has a number.
    """
    everything = start.rates(method, experiment.start)
    own = experiment.start.trainable_stages
    most = own or start.count_stages(method.backbone)
    by_stages = {most: {parameter: rate > 0 for parameter, rate in everything.items()}}
    choices = {most // 2, most // 4, start.last_stages(method.backbone)}
    fewer_ones = choices - {0, most} if own is None and not decided else set()
    for fewer in sorted((one for one in fewer_ones if one < most), reverse=True):
        shares = start.rates(
            method, experiment.start.model_copy(update={"trainable_stages": fewer})
        )
        by_stages[fewer] = {parameter: rate > 0 for parameter, rate in shares.items()}
    return by_stages | {0: dict.fromkeys(everything, False)}


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of `work`, the mean of as many calls as fit into a short time."""
    begin = time.perf_counter()
    count = 0
    while not count or time.perf_counter() - begin < _SECONDS:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        count += 1
    return (time.perf_counter() - begin) / count


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most memory by which `work` makes a GPU's tensors or this process grow (Linux; elsewhere 0)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        work()
        return int(torch.cuda.max_memory_allocated(device)) - held
    with suppress(OSError):
        return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM, the peak, is counted from here
    before = _resident("VmRSS")
    work()
    return max(0, _resident("VmHWM") - before)


def held_bytes(device: torch.device) -> int:
    """Bytes of a GPU's tensors, or of this process (Linux; elsewhere 0)."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _resident("VmRSS")


def _resident(name: str) -> int:
    """Bytes of an entry of /proc/self/status."""
    with suppress(OSError):
        return 1024 * int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])
    return 0


def memory_of(device: torch.device) -> int:
    """Bytes that this process may use on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device))
    return usable_memory()
