"""Training of a detector; an interrupted one continues where it was stopped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hexa.config import UserError
from hexa.data.loading.store import check_problems
from hexa.evaluation.protocol import Task
from hexa.runtime.random import global_draws
from hexa_paper.detection.detector import Detector, Objects
from hexa_paper.detection.images import TrainingBatches
from hexa_paper.detection.options import DetectOptions
from hexa_paper.detection.state import Content, State


class Training:
    """A detector, what it learns from, and where its state is kept.

    Draws depend on the stream and the iteration alone, so that the state is the detector's and the optimizer's.
    After the iterations that learn come those that recalibrate batch-norms; `total` counts both.
    problems: photographs that could not be read. curve: the loss, fifty times in all. resumed: the iteration that an
    earlier attempt had come to.
    """

    def __init__(
        self,
        task: Task,
        detector: Detector,
        data: TrainingBatches,
        options: DetectOptions,
        state: State,
    ) -> None:
        self.task = task
        self.detector = detector
        self.data = data
        self.options = options
        self.state = state
        self.optimizer = _optimizer(detector, options)
        self.problems: dict[int, str] = {}
        self.curve: list[dict[str, float]] = []
        self.iteration = 0
        assert options.iterations is not None
        self.iterations: int = options.iterations
        self.total = self.iterations + (options.precise_bn if self._norms() else 0)
        self._stream = data.stream.child("sampling")
        if (kept := self.state.newest()) is not None:
            self.detector.load_state_dict(kept["detector"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.iteration = kept["step"]
            self.curve = kept["curve"]
            self.problems = kept["problems"]
        self.resumed = self.iteration

    def run(self) -> None:
        """Train to the end. Raises Interrupted after a signal, the state being saved, and UserError for a bad loss."""
        due = {*range(0, self.total, self.options.save_every), self.iterations, self.total}
        self.state.walk(
            self.task, self.data, range(self.iteration, self.total), self._take, self._content, due
        )

    def _take(self, item: Any) -> tuple[str, int, int]:
        if self.iteration < self.iterations:
            self._step(item)
            return "training the detector", self.iteration, self.iterations
        self._recalibrate(item)
        return (
            "statistics of batch-norms",
            self.iteration - self.iterations,
            self.options.precise_bn,
        )

    def _step(self, item: Any) -> None:
        images, objects = self._given(item)
        rate = self.options.rate(self.iteration)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.detector.train()
        with global_draws(self._stream.child(self.iteration), self.task.device):
            losses = self.detector(images, objects)
            total = torch.stack(list(losses.values())).sum()
            if not bool(total.isfinite()):
                bad = ", ".join(
                    name for name, value in losses.items() if not bool(value.isfinite())
                )
                self.state.forget()  # it would come to the same
                where = f"iteration {self.iteration} and learning rate {rate:g}"
                remedy = "take a lower learning_rate, or a clip_norm of 1"
                raise UserError(f"detect: {bad} is not finite at {where}; {remedy}")
            self.optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.detector.parameters(), self.options.clip_norm)
        self.optimizer.step()
        self.iteration += 1
        if self.iteration % max(1, self.iterations // 50) == 0:
            self.curve.append({"iteration": self.iteration, "loss": float(total.detach())})

    def _given(self, item: Any) -> tuple[list[torch.Tensor], list[Objects]]:
        images, objects, problems = item
        check_problems(self.data.source, self.problems, 0.01, *problems)
        device = self.task.device
        moved = [
            {name: value.to(device, non_blocking=True) for name, value in one.items()}
            for one in objects
        ]
        return [image.to(device, non_blocking=True) for image in images], moved

    @torch.no_grad()
    def _recalibrate(self, item: Any) -> None:
        """Precise batch-norm: statistics are the means of those of further batches, at the final weights."""
        number = self.iteration - self.iterations
        norms = self._norms()
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = None  # to torch, a cumulative mean
            if number == 0:
                norm.reset_running_stats()
        with global_draws(self._stream.child("precise", number), self.task.device):
            self.detector(*self._given(item))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        self.iteration += 1

    def _norms(self) -> list[_BatchNorm]:
        return [
            m for m in self.detector.train().modules() if isinstance(m, _BatchNorm) and m.training
        ]

    def _content(self) -> Content:
        learnt = {"detector": self.detector.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**learnt, "curve": self.curve, "problems": self.problems}


def _optimizer(detector: nn.Module, options: DetectOptions) -> torch.optim.Optimizer:
    """Weights of normalisations do not decay, as in Detectron2."""
    kinds = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
    norms = {
        p for m in detector.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False)
    }
    learning = [p for p in detector.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learning if p not in norms], "weight_decay": options.weight_decay},
        {"params": [p for p in learning if p in norms], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, options.learning_rate, momentum=0.9)
