"""Plans an adaptation: its size, batch and length for the given time on this machine."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hexa import recipes
from hexa.adaptation.looking import Seen
from hexa.config import UserError
from hexa.core import Batch
from hexa.data import Source
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.tables import format_duration
from hexa.run.build import Machine, build_loader, build_method, build_objective, build_optimizer, kernels, setting_of
from hexa.run.start import begin_from_weights
from hexa.runtime.allocator import return_freed_memory
from hexa.training.step import prepared
from hexa.training.step import step as train_step

#: Sides of views, and the passes over the images that a larger size must leave time for.
_SIZES, _PASSES = (64, 96, 128, 160, 192, 224), 6
#: The share of the memory that a step may take, and the smallest batch that is tried to achieve it.
_ROOM, _LEAST_BATCH = 0.4, 16
#: If there are this many passes, only the head learns in the first: a random head would damage the backbone.
_HEAD_FIRST = 3
#: Scores during training, and in all: with one for the plan and one for each side at the end.
SCORES, _SCORED = 4, 7
#: Steps are timed for this share of the given time, within bounds in seconds, and at least two.
_TIMING, _LEAST, _MOST = 0.02, 3.0, 15.0


@dataclass(frozen=True)
class Plan:
    """An experiment that fits into the given time, and lines that describe it."""

    experiment: Experiment
    seconds: float
    """Expected length of the training."""
    lines: tuple[str, ...]


def first_draft(backbone: str, data: str, seen: Seen, domain: str | None, fields: Mapping[str, Any]) -> Experiment:
    """The experiment without its size and length. domain: preset of views; None to choose it by the images."""
    from hexa.recipes import domains

    batch = min(128, 1 << (seen.count // 4).bit_length() - 1)
    changes: dict[str, Any] = {"data": data, "start.weights": backbone, "batch_size": batch}
    changes |= domains.changes(domain or seen.domain, fields) | dict(fields)
    draft = override(recipes.get("adapt"), changes)
    return begin_from_weights(draft, {**fields, "start.weights": backbone})


def plan(
    draft: Experiment,
    source: Source,
    seen: Seen,
    seconds: float,
    spent: float,
    score: Callable[[Experiment], object],
    fields: Mapping[str, Any],
) -> Plan:
    """The largest size with which enough passes over the images fit into what is left of `seconds`.

    spent: seconds for everything else except scores. score: scores a state; timed here once. fields: those set by the
    user, which are kept. Raises UserError if not even one pass fits.
    """
    by_clock = not {"epochs", "max_steps"} & fields.keys()
    native, timing = draft.views.size, min(_MOST, max(_LEAST, _TIMING * seconds)) if by_clock else 0.0
    smaller = [] if "views.size" in fields else [size for size in _SIZES if size < native]
    # enlarging images more than twice would only take longer
    sizes = [size for size in [*smaller, native] if size <= max(_SIZES[0], 2 * seen.size)] or [native]
    chosen = _at_size(draft, sizes[0], fields)
    step, memory = cost_of_a_step(chosen, source, timing)
    begin = time.perf_counter()
    score(chosen)
    scores = _SCORED * (time.perf_counter() - begin)
    room = _ROOM * _memory(Machine.of(draft).device)
    while memory > room and "batch_size" not in fields and chosen.batch_size > _LEAST_BATCH:
        draft = override(draft, {"batch_size": chosen.batch_size // 2})
        chosen = _at_size(draft, sizes[0], fields)
        step, memory = cost_of_a_step(chosen, source, timing)

    def left(size: int) -> float:
        """Seconds left for training; time and memory are proportional to the area of views."""
        return seconds - spent - 2 * timing - scores * (size / sizes[0]) ** 2

    def fits(size: int) -> bool:
        """Whether views of this size leave time for enough passes, and fit into memory."""
        share = (size / sizes[0]) ** 2
        return memory * share <= room and left(size) / (step * share) * chosen.batch_size >= _PASSES * len(source)

    wanted = max(filter(fits, sizes), default=sizes[0])
    if wanted != sizes[0]:
        chosen = _at_size(draft, wanted, fields)
        step, _ = cost_of_a_step(chosen, source, timing)
    per_epoch = len(source) // chosen.batch_size
    steps = chosen.epochs * per_epoch if "epochs" in fields else int(left(wanted) / step)
    head_first = steps >= _HEAD_FIRST * per_epoch
    if head_first and "epochs" not in fields:  # training the head alone saves the backward pass, two thirds of the work
        steps += 2 * per_epoch // 3
    if steps < per_epoch:
        needed = seconds - left(wanted) + per_epoch * step
        raise UserError(
            f"--time is too short: with one pass over {len(source):,} images at {chosen.views.size} px an adaptation "
            f"takes about {format_duration(needed)} here; give --time {math.ceil(1.2 * needed / 60)}m or more, or "
            "fewer images"
        )
    epochs = math.ceil(steps / per_epoch)
    changes: dict[str, Any] = {
        "epochs": epochs,
        "max_steps": steps,
        "start.freeze_backbone": int(head_first),
    }
    if by_clock:  # half an epoch less, since the clock is checked after each epoch
        changes |= {"training.max_seconds": (1.05 * steps - per_epoch / 2) * step}
    changes |= {"monitor.knn_every": math.ceil(epochs / SCORES)}
    experiment = override(chosen, {name: value for name, value in changes.items() if name not in fields})
    lines = _lines(experiment, seen, seconds, steps / per_epoch, native)
    if by_clock and steps < _PASSES * per_epoch:
        enough = math.ceil(1.1 * (seconds - left(wanted) + _PASSES * per_epoch * step) / 60)
        lines = (*lines, f"these are few: give --time {enough}m or more for {_PASSES} passes")
    return Plan(experiment, steps * step, lines)


def _at_size(draft: Experiment, size: int, fields: Mapping[str, Any]) -> Experiment:
    if size == draft.views.size:
        return draft
    changed = override(draft, {"views.size": size, "start.sha256": None})
    return begin_from_weights(changed, {**fields, "views.size": size})


def _lines(experiment: Experiment, seen: Seen, seconds: float, passes: float, native: int) -> tuple[str, ...]:
    size, start = experiment.views.size, experiment.start
    method = " + ".join([experiment.method.name, *(n for n, h in experiment.hard_examples.items() if h.weight > 0)])
    statistics = "kept" if start.batch_norm == "keep" else start.batch_norm
    head_first = ", only the head in the first pass" * (start.freeze_backbone == 1)
    smaller = f" (with the weights' {native} px, passes would be too few or images enlarged)" * (size != native)
    return (
        f"images: {seen}",
        f"method: {method}, from {start.weights}, batch-norm statistics {statistics}{head_first}",
        f"views: {experiment.views.based_on} for {seen.domain}, {size} px{smaller}",
        f"length: {passes:.1f} passes in batches of {experiment.batch_size}, about {format_duration(seconds)} in all",
    )


def cost_of_a_step(experiment: Experiment, source: Source, seconds: float) -> tuple[float, int]:
    """Seconds and bytes of a training step on this machine, measured for `seconds`."""
    machine = Machine.of(experiment)
    with kernels(experiment.training.deterministic), torch.random.fork_rng(devices=[]):
        method = build_method(experiment, setting_of(experiment, len(source)), machine, filled=True)
        objective = build_objective(experiment, method, machine)
        loader = build_loader(experiment, source, machine)
        optimizer = build_optimizer(experiment, method, loader.steps_per_epoch)

        def train(batch: Batch) -> None:
            batch = prepared(batch, experiment.training.channels_last)
            train_step(objective, optimizer, batch, optimizer.total_steps - 1)  # the last, in which all layers learn

        with closing(loader):
            batches = (batch for epoch in itertools.count() for batch in loader.epoch(epoch))
            first = next(batches)  # not timed: workers start, and cuDNN chooses its algorithms
            memory = peak_bytes(lambda: train(first), machine.device)
            begin, count = time.perf_counter(), 0
            while count < 2 or time.perf_counter() - begin < seconds:
                train(next(batches))
                if machine.device.type == "cuda":
                    torch.cuda.synchronize(machine.device)
                count += 1
            return (time.perf_counter() - begin) / count, memory


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most memory that `work` needs: a GPU's tensors, or what this process grows by (Linux; elsewhere 0)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM, the peak, is counted from here
    before = _resident("VmRSS")
    work()
    return max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    """Bytes of an entry of /proc/self/status."""
    with suppress(OSError):
        return 1024 * int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])
    return 0


def _memory(device: torch.device) -> int:
    """Bytes of the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
