"""Seconds and bytes of training and scoring on this machine, measured with a few small steps."""

from __future__ import annotations

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
from hexa.data.loading.loaders import RESIDENT_LIMIT_BYTES, PretrainLoader
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
    roomy_setting,
)
from hexa.run.start import begin_from_weights
from hexa.runtime.resources import return_freed_memory, usable_cores, usable_memory
from hexa.training.step import prepared, step as train_step
from hexa.weights import start

#: Largest size of views for timing steps on a CPU, in pixels.
_SIZE = 128
#: Pixels of a timed batch. Small batches take longer per image, so this is multiplied by four if
#: only one kind of step is timed.
_PIXELS = 4 * 128**2
#: Seconds for timing one kind of step.
_SECONDS = 0.1


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of one image on this machine, at `size` pixels; both grow with the area of
    the views."""

    size: int
    read: float
    """Seconds to decode an image and cut its views, at any size."""
    steps: Mapping[int, float]
    """Seconds of forward and backward, by the number of last stages that learn; 0 is the head
    alone, the largest key all stages that may learn."""
    look: float
    """Seconds of computing features only."""
    memory: float = 0.0
    """Bytes of a step that trains all stages that may learn."""
    setup: float = 0.0
    """Seconds to build a run, once per run."""
    updates: Mapping[int, float] = field(default_factory=dict)
    """Seconds of the optimizer's part of a step, divided by the batch size, by the number of
    learning stages; at any size."""
    again: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Seconds and bytes of a step on cached maps (`start.view_sets`), by the number of learning
    stages; empty if maps cannot be cached."""
    held: float = 0.0
    """Other memory of this process in bytes, such as weights and the optimizer's state."""
    resident: int = RESIDENT_LIMIT_BYTES
    """Limit for cached images or maps, in bytes."""

    def train(self, size: int, stages: int) -> float:
        """Return the seconds of training on an image once."""
        return (
            self.read + self.updates.get(stages, 0.0) + self.steps[stages] * (size / self.size) ** 2
        )

    def repeat(self, size: int, stages: int) -> float:
        """Return the seconds of training on the cached maps of an image once."""
        return self.updates.get(stages, 0.0) + self.again[stages][0] * (size / self.size) ** 2

    def score(self, size: int) -> float:
        """Return the seconds for the features of an image that is already decoded."""
        return self.look * (size / self.size) ** 2

    def bytes(self, size: int, stages: int) -> float:
        """Return the bytes of an image in a training step: maps are stored for the stages that
        gradients reach."""
        head = self.steps.get(0, 0.0)
        back = self.steps[stages] - head
        whole = self.steps[max(self.steps)] - head
        return self.memory * (size / self.size) ** 2 * max(0.1, min(1.0, back / max(whole, 1e-9)))

    def shared(self, processes: int) -> Costs:
        """Return the costs per process if several processes share the images of a step."""
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
    """Return the experiment at another size of its views, and of its network if that has a fixed
    size."""
    if size == draft.views.size:
        return draft
    return begin_from_weights(
        override(draft, {"views.size": size, "start.sha256": None}), [*fields, "views.size"]
    )


def measure(
    draft: Experiment, source: Source, fields: Collection[str], *, partly: bool = True
) -> Costs:
    """Time a few small steps; on a GPU, where small batches are not representative, time the steps
    of the run.

    partly: also time steps that train only the last stages or the head.
    """
    machine = Machine.of(draft)
    begin = time.perf_counter()
    experiment = _small(draft, fields, machine, partly)
    few = min(len(source), 4 * experiment.batch_size)
    some = Subset(source, np.unique(np.linspace(0, len(source) - 1, few).round().astype(int)))
    with kernels(experiment.training.deterministic), torch.random.fork_rng(devices=[]):
        method = build_method(
            experiment, roomy_setting(experiment, len(some)), machine, filled=True
        )
        setup = time.perf_counter() - begin
        begin = time.perf_counter()
        loader = build_loader(experiment, some, machine)
        if loader.resident:  # the run first decodes all images
            setup += (time.perf_counter() - begin) * len(source) / len(some)
        with closing(loader):
            batch, seconds = _drawn(loader, experiment, machine.device)
            every = _learning(method, draft, "start.trainable_stages" in fields)
            if not partly:
                every = {max(every): every[max(every)]}
            costs = _timed(draft, experiment, method, machine, batch, every)
            read = seconds / len(batch) / _readers(draft, machine, loader.resident)
            return replace(costs, read=read, setup=setup)


def _small(
    draft: Experiment, fields: Collection[str], machine: Machine, partly: bool
) -> Experiment:
    """Return the experiment with the batch size, micro-batches and view size to time."""
    size = draft.views.size
    most = draft.batch_size
    if machine.device.type == "cpu":
        size = min(size, rounded(outline(draft.network), _SIZE))
        pixels = _PIXELS if partly else 4 * _PIXELS
        most = min(most, max(4, pixels // size**2))
    # a divisor of the batch size, which then also divides a queue
    divisors = (count for count in range(most, 3, -1) if draft.batch_size % count == 0)
    batch_size = next(divisors, most)
    parts = range(min(draft.training.accumulate, batch_size // 2), 1, -1)
    changes = {
        "batch_size": batch_size,
        "training.accumulate": next((count for count in parts if batch_size % count == 0), 1),
        "training.num_workers": 0,
    }
    return override(at_size(draft, size, fields), changes)


def _drawn(
    loader: PretrainLoader, experiment: Experiment, device: torch.device
) -> tuple[Batch, float]:
    """Return a batch, and the seconds to read it."""

    def draw() -> Batch:
        return prepared(next(iter(loader.epoch(0))), experiment.training.channels_last)

    begin = time.perf_counter()
    batch = draw()
    seconds = time.perf_counter() - begin
    if device.type != "cpu":  # the first batch on a GPU also loads kernels
        seconds = _seconds(draw, device)
    return batch, seconds


def _timed(
    draft: Experiment,
    experiment: Experiment,
    method: Method,
    machine: Machine,
    batch: Batch,
    every: Mapping[int, Mapping[nn.Parameter, bool]],
) -> Costs:
    """Return the costs of steps on a batch. every: whether each parameter learns, by the number of
    learning stages."""
    device = machine.device
    count = len(batch)
    objective = build_objective(experiment, method, machine)
    optimizer = build_optimizer(experiment, method, steps_per_epoch=1)
    last = optimizer.total_steps - 1  # in the last step all stages learn

    def train(batch: Batch = batch) -> None:
        train_step(objective, optimizer, batch, last)

    def update() -> None:
        for parameter in optimizer.parameters:
            learns = parameter.requires_grad
            parameter.grad = torch.zeros_like(parameter) if learns else None
        optimizer.step(last)

    @torch.no_grad()
    def look() -> None:
        with machine.autocast():
            method.backbone(batch.crops[0])

    train()  # not measured: the first step creates the optimizer's state
    memory = peak_bytes(train, device) / count
    held = held_bytes(device)
    steps = dict[int, float]()
    updates = dict[int, float]()
    again = dict[int, tuple[float, float]]()
    for stages, learning in every.items():
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)
        alone = _seconds(update, device)  # does not depend on the number of images
        steps[stages] = max(0.0, _seconds(train, device) - alone) / count
        updates[stages] = alone / draft.batch_size
        trunk = remembering(experiment, method, machine, learning) if stages else None
        if trunk is not None:
            # a few images are not representative for a head
            maps = trunk(batch).repeated(max(1, draft.batch_size // count))
            seconds = max(0.0, _seconds(lambda: train(maps), device) - alone)  # noqa: B023
            size = sum(crop.nbytes for crop in maps.crops)
            again[stages] = (seconds / len(maps), size / len(maps))
            trunk.remove()
    method.eval()
    look()
    seconds = _seconds(look, device) / count
    size = experiment.views.size
    return Costs(size, 0.0, steps, seconds, memory, 0.0, updates, again, held)


def _readers(experiment: Experiment, machine: Machine, resident: bool) -> int:
    """Return the number of processes or cores that decode and crop while the network trains."""
    workers = 0 if resident else choose_workers(experiment.training.num_workers, machine.device)
    return max(1, usable_cores() if workers and machine.device.type == "cpu" else workers)


def _learning(
    method: Method, experiment: Experiment, decided: bool
) -> dict[int, dict[nn.Parameter, bool]]:
    """Return whether each backbone parameter learns, by the number of last stages: all, half, a
    quarter, one, none.

    If the number is `decided`, only all and none; `start.trainable_stages`, if set, limits all.
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
    """Return the mean seconds of `work` over the calls that fit into a short time."""
    begin = time.perf_counter()
    count = 0
    while not count or time.perf_counter() - begin < _SECONDS:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        count += 1
    return (time.perf_counter() - begin) / count


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Return the peak growth in bytes during `work`, of a GPU's tensors or of this process (Linux;
    0 elsewhere)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        work()
        return int(torch.cuda.max_memory_allocated(device)) - held
    with suppress(OSError):
        return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before = _resident("VmRSS")
    work()
    return max(0, _resident("VmHWM") - before)


def held_bytes(device: torch.device) -> int:
    """Return the bytes of a GPU's tensors, or of this process (Linux; 0 elsewhere)."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _resident("VmRSS")


def _resident(name: str) -> int:
    """Return the bytes of an entry of /proc/self/status."""
    with suppress(OSError):
        return 1024 * int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])
    return 0


def memory_of(device: torch.device) -> int:
    """Return the bytes that this process may use on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device))
    return usable_memory()
