"""Training of a detector that goes on where it was stopped, and the objects it then finds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hexa.config import UserError
from hexa.data import Source
from hexa.data.store import check_problems
from hexa.data.workers import Items, choose_workers
from hexa.evaluation.detection_images import TestImages, TrainingBatches, scaled
from hexa.evaluation.detector import Detector, Objects
from hexa.evaluation.protocol import Task
from hexa.runtime import checkpoints
from hexa.runtime.random import global_draws
from hexa.runtime.signals import Interrupted, Interrupts


@dataclass(frozen=True)
class Schedule:
    """SGD, momentum 0.9. The rate rises linearly from a thousandth; from each of `decay_at` on it is ×0.1."""

    iterations: int
    learning_rate: float
    warmup_iterations: int
    decay_at: tuple[float, ...]
    weight_decay: float
    clip_norm: float | None
    precise_bn: int
    """Batches that batch-norms take their final statistics from; 0 keeps the running ones."""
    save_every: int

    def rate(self, iteration: int) -> float:
        """Of iteration 0 … iterations − 1."""
        factor = 0.1 ** sum(iteration >= round(share * self.iterations) for share in self.decay_at)
        risen = min(1.0, iteration / self.warmup_iterations) if self.warmup_iterations else 1.0
        return float(self.learning_rate * factor * (risen + (1 - risen) / 1000))


class Training:
    """A detector, what it learns from, and the folder that keeps its state (None: nothing is kept).

    Draws depend on the stream and the iteration alone, so that the state is the detector's and the optimizer's.
    problems: photographs that could not be read. curve: the loss, fifty times in all. resumed: the iteration that an
    earlier attempt had come to.
    """

    def __init__(
        self, task: Task, detector: Detector, data: TrainingBatches, schedule: Schedule, folder: Path | None
    ) -> None:
        self.task, self.detector, self.data, self.schedule, self.folder = task, detector, data, schedule, folder
        self.optimizer = _optimizer(detector, schedule)
        self.problems: dict[int, str] = {}
        self.curve: list[dict[str, float]] = []
        self.iteration = 0
        self._stream = data.stream.child("sampling")
        self._restore()
        self.resumed = self.iteration

    def run(self) -> None:
        """Train to the end. Raises Interrupted after a signal, the state being saved, and UserError for a bad loss."""
        schedule, task = self.schedule, self.task
        numbers = range(self.iteration, schedule.iterations + schedule.precise_bn)
        items = Items(self.data, numbers, task.device, choose_workers(task.num_workers, task.device))
        try:
            with Interrupts(_say) as interrupts:
                while self.iteration < schedule.iterations:
                    self._step(next(items))
                    stop = interrupts.noticed()
                    if self.iteration % schedule.save_every == 0 or stop or self._last:
                        self._save()
                    if stop:
                        go_on = "the same command" if self.folder is not None else None
                        raise Interrupted(stop, self.iteration, None, go_on)
                    task.report("training the detector", self.iteration, schedule.iterations)
            self._recalibrate(items)
        finally:
            items.close()

    def forget(self) -> None:
        """Remove the stored state, which nobody needs once there is a result."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _last(self) -> bool:
        return self.iteration == self.schedule.iterations

    def _step(self, item: Any) -> None:
        images, objects = self._given(item)
        rate = self.schedule.rate(self.iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.detector.train()
        with global_draws(self._stream.child(self.iteration), self.task.device):
            losses = self.detector(images, objects)
            total = torch.stack(list(losses.values())).sum()
            if not bool(total.isfinite()):
                bad = ", ".join(name for name, value in losses.items() if not bool(value.isfinite()))
                self.forget()  # it would come to the same
                raise UserError(
                    f"detect: {bad} is not finite at iteration {self.iteration} and learning rate {rate:g}; take a "
                    "lower learning_rate, or a clip_norm of 1"
                )
            self.optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
        if self.schedule.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.detector.parameters(), self.schedule.clip_norm)
        self.optimizer.step()
        self.iteration += 1
        if self.iteration % max(1, self.schedule.iterations // 50) == 0:
            self.curve.append({"iteration": self.iteration, "loss": float(total.detach())})

    def _given(self, item: Any) -> tuple[list[torch.Tensor], list[Objects]]:
        images, objects, problems = item
        if problems:
            self.problems.update(problems)
            check_problems(self.data.source, self.problems, 0.01)
        device = self.task.device
        moved = [{name: value.to(device, non_blocking=True) for name, value in one.items()} for one in objects]
        return [image.to(device, non_blocking=True) for image in images], moved

    @torch.no_grad()
    def _recalibrate(self, items: Iterator[Any]) -> None:
        """Precise batch-norm: statistics are the means of those of further batches, at the final weights."""
        norms = [m for m in self.detector.train().modules() if isinstance(m, _BatchNorm) and m.training]
        momenta = [norm.momentum for norm in norms]
        if not norms or not self.schedule.precise_bn:
            return
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # to torch, a cumulative mean
        for number in range(self.schedule.precise_bn):
            with global_draws(self._stream.child("precise", number), self.task.device):
                self.detector(*self._given(next(items)))
            self.task.report("statistics of batch-norms", number + 1, self.schedule.precise_bn)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def _save(self) -> None:
        if self.folder is not None:
            state = {"detector": self.detector.state_dict(), "optimizer": self.optimizer.state_dict()}
            checkpoints.save(self.folder, self.iteration, {**state, "curve": self.curve})

    def _restore(self) -> None:
        found = None if self.folder is None else checkpoints.newest_good(self.folder, _say, self.task.device)
        if found is not None:
            state = found[1]
            self.detector.load_state_dict(state["detector"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.iteration, self.curve = state["step"], state["curve"]


def _say(line: str) -> None:
    print(f"hexa: {line}", file=sys.stderr)


def _optimizer(detector: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """Weights of normalisations do not decay, as in Detectron2."""
    kinds = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
    norms = {id(p) for m in detector.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False)}
    learning = [p for p in detector.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learning if id(p) not in norms], "weight_decay": schedule.weight_decay},
        {"params": [p for p in learning if id(p) in norms], "weight_decay": 0.0},
    ]
    return torch.optim.SGD([group for group in groups if group["params"]], schedule.learning_rate, momentum=0.9)


@torch.no_grad()
def find(task: Task, detector: Detector, source: Source, shorter: int, longest: int) -> dict[int, Objects]:
    """The objects found in each image that can be read, by its position, on the CPU, in pixels of the photograph."""
    detector.eval()
    found: dict[int, Objects] = {}
    problems: dict[int, str] = {}
    items = Items(
        TestImages(source, shorter, longest),
        range(len(source)),
        task.device,
        choose_workers(task.num_workers, task.device),
    )
    try:
        for position in range(len(source)):
            image, size, problem = next(items)
            if image is None:
                problems[position] = problem
                check_problems(source, problems, 0.01)
                continue
            objects = {name: value.cpu() for name, value in detector([image.to(task.device)])[0].items()}
            found[position] = {**objects, "boxes": scaled(objects["boxes"], image.shape[1:], size)}
            task.report("detecting", position + 1, len(source))
    finally:
        items.close()
    if problems:
        task.notes.append(f"{len(problems)} of {len(source)} images of {source!r} could not be read")
    return found
