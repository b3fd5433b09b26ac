"""Optimizers by name, and their learning rates.

A new optimizer needs a branch in `_made` and a name in the config. For `training.graph` its step
must take the rate as a 0-d tensor on the device (see `SGD`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pydantic
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from hexa.config import Config
from hexa.ops.draws import of_step
from hexa.runtime.gradients import GradientAverage
from hexa.training.muon import Muon, move, velocities, with_gradients
from hexa.training.schedules import ScheduleConfig, learning_rate_share


class OptimizerConfig(Config):
    """The optimizer. The defaults are MoCo's (F4)."""

    name: Literal["sgd", "larc", "lars", "adamw", "muon"] = "sgd"
    """sgd: v ← μ·v + (g + λ·θ); θ ← θ − lr·v. larc: the same with g + λ·θ scaled per tensor by the
    trust ratio `trust` · ‖θ‖ / (‖g‖ + λ·‖θ‖ + 1e-8) (1 if θ or g is zero), including batch-norms
    and biases (F10, F11). lars: like larc, but batch-norms and biases are neither scaled nor
    decayed (F6). adamw: decoupled decay, except for batch-norms and biases; β = (0.9, 0.999). muon:
    orthogonalised momentum rotates convolutions; other parameters follow sgd at `other_rate`."""
    learning_rate: PositiveFloat = 0.03
    """Learning rate at `base_batch_size`, or at any batch size if that is none. muon: the angle in
    radians by which a step rotates a convolution."""
    base_batch_size: PositiveInt | None = None
    """Scale the rate linearly: learning_rate · batch_size / base_batch_size. none: do not scale."""
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """μ."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay λ. sgd and larc: of all parameters, including batch-norms and biases, as in MoCo
    (F10). muon: not of convolutions."""
    other_rate: PositiveFloat = 0.03
    """muon only: learning rate of all parameters except convolutions; schedule and batch size scale
    it like `learning_rate`."""
    trust: PositiveFloat = 0.001
    """larc and lars only: trust coefficient."""
    max_gradient_norm: PositiveFloat | None = None
    """Clip the gradient of each parameter tensor to this norm (DINO); none does not clip."""
    final_weight_decay: NonNegativeFloat | None = None
    """Final weight decay of a half-cosine schedule over `epochs` (DINO); none keeps it
    constant."""
    nesterov: bool = False
    """Use Nesterov momentum."""

    @pydantic.model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimizerConfig:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum above 0")
        if self.nesterov and self.name == "muon":
            raise ValueError(
                "nesterov is for sgd, larc and lars; muon always uses it for convolutions"
            )
        return self

    def weight_decay_at(self, share: float) -> float:
        """Return λ after this share of the steps of all epochs."""
        if self.final_weight_decay is None:
            return self.weight_decay
        rest = self.weight_decay - self.final_weight_decay
        return self.final_weight_decay + rest * 0.5 * (1 + math.cos(math.pi * share))


class Pace(NamedTuple):
    """Learning schedule of a parameter: its share of the learning rate, and its first epoch of
    learning."""

    rate: float = 1.0
    from_epoch: int = 0


class SGD(torch.optim.SGD):
    """torch's SGD, but the rate may be a 0-d tensor on the device, which torch would read."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        for group, parameters, steps in with_gradients(self):
            if group["weight_decay"]:
                steps = torch._foreach_add(steps, parameters, alpha=group["weight_decay"])
            if group["momentum"]:
                momentum = group["momentum"]
                found = velocities(self, parameters, steps, momentum, "momentum_buffer")
                ahead = group["nesterov"]
                steps = torch._foreach_add(steps, found, alpha=momentum) if ahead else found
            move(parameters, steps, group["lr"])


class AdamW(torch.optim.AdamW):
    """torch's AdamW, but rate and decay may be 0-d tensors on the device, which torch would read.

    θ ← (1 − lr·λ)·θ − lr / (1 − β₁ᵗ) · m / (√(v / (1 − β₂ᵗ)) + ε), with t counted on the device.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        if not isinstance(self.param_groups[0]["lr"], Tensor):
            super().step()
            return
        for group, parameters, gradients in with_gradients(self):
            beta1, beta2 = group["betas"]
            counts = []
            for parameter in parameters:
                state = self.state[parameter]
                # torch counts on the host
                state["step"] = state.get("step", torch.zeros(())).to(parameter.device)
                counts.append(state["step"])
            torch._foreach_add_(counts, 1)
            count = torch.stack(counts).double()
            shares = torch._foreach_mul(gradients, 1 - beta1)
            means = velocities(self, parameters, shares, beta1, "exp_avg")
            shares = torch._foreach_mul(torch._foreach_mul(gradients, gradients), 1 - beta2)
            squares = velocities(self, parameters, shares, beta2, "exp_avg_sq")
            roots = torch._foreach_div(squares, (1 - beta2**count).unbind())
            torch._foreach_sqrt_(roots)
            torch._foreach_add_(roots, group["eps"])
            steps = torch._foreach_div(means, (1 - beta1**count).unbind())
            torch._foreach_div_(steps, roots)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            move(parameters, steps, group["lr"])


#: Optimizers that neither scale nor decay batch-norms and biases.
_SPARE_VECTORS = {"lars", "adamw"}


def build(
    parameters: Iterable[nn.Parameter],
    config: OptimizerConfig,
    batch_size: int,
    unscheduled: Iterable[nn.Parameter] = (),
    paces: Mapping[nn.Parameter, Pace] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """Build the optimizer of all parameters that require a gradient; its base rate is the one for
    `batch_size` (global).

    Groups have the keys `scheduled` (the rate follows the schedule), `decayed`, and the `rate` and
    `from_epoch` of a pace. Parameters without a gradient in a step do not change and are not
    decayed (F10).
    """
    fixed = {id(parameter) for parameter in unscheduled}
    muon = config.name == "muon"
    rate = config.learning_rate
    if config.base_batch_size is not None:
        rate = rate * batch_size / config.base_batch_size
    groups: dict[tuple[bool, bool, bool, Pace], dict[str, Any]] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        scheduled = id(parameter) not in fixed
        spared = config.name in _SPARE_VECTORS and parameter.ndim <= 1
        turns = muon and parameter.ndim == 4  # not the positions and tokens of a ViT
        pace = paces.get(parameter, Pace())
        if muon and not turns:
            pace = pace._replace(rate=pace.rate * config.other_rate / config.learning_rate)
        group: dict[str, Any] = {"params": [], "scheduled": scheduled, "decayed": not spared}
        if pace.rate != 1:
            group["rate"] = pace.rate
        if pace.from_epoch:
            group["from_epoch"] = pace.from_epoch
        if spared:
            group["weight_decay"] = 0.0
        if turns:
            group["orthogonal"] = True
        groups.setdefault((scheduled, spared, turns, pace), group)["params"].append(parameter)
    return _made(list(groups.values()), config, lr=rate, weight_decay=config.weight_decay)


def _made(
    groups: list[dict[str, Any]], config: OptimizerConfig, **common: Any
) -> torch.optim.Optimizer:
    if config.name == "adamw":
        return AdamW(groups, **common)
    if config.name == "muon":
        return Muon(groups, momentum=config.momentum, **common)
    common |= {"momentum": config.momentum, "nesterov": config.nesterov}
    if config.name == "sgd":
        return SGD(groups, **common)
    from timm.optim.lars import Lars  # imported here because it takes a while

    fixed = {"eps": 1e-8, "trust_clip": False, "foreach": True}  # its loop would read a tensor rate
    made: torch.optim.Optimizer = Lars(groups, trust_coeff=config.trust, **fixed, **common)
    for group in made.param_groups:
        # timm's default is to scale parameters with a weight decay above 0
        group["always_adapt"] = config.name not in _SPARE_VECTORS or group["params"][0].ndim > 1
    return made


@dataclass(eq=False)
class ScheduledOptimizer:
    """An optimizer and its learning rates over a run; only this class sets rates, at every step.

    optimizer: the result of `build`; the schedule scales its base rate.
    total_steps: the step after which the run ends, from `epochs` or `max_steps`. Changing it
    stretches the schedule.
    """

    optimizer: torch.optim.Optimizer
    config: OptimizerConfig
    schedule: ScheduleConfig
    epochs: int
    steps_per_epoch: int
    max_steps: InitVar[int | None] = None
    capturable: bool = False
    """Pass rates to the optimizer as tensors on the device, so that a CUDA graph can be replayed."""

    def __post_init__(self, max_steps: int | None) -> None:
        steps = self.epochs * self.steps_per_epoch
        self._planned = self.total_steps = min(steps, max_steps or steps)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.average = GradientAverage(self.parameters)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        at = self._planned_at(step)
        share = learning_rate_share(self.schedule, at, self.epochs, self.steps_per_epoch)
        return float(self.optimizer.defaults["lr"] * share)

    def step(self, step: int) -> None:
        """Update the parameters at the rates of this step, and delete the gradients."""
        self.set_rates(step)
        if self.capturable:
            for group in self.optimizer.param_groups:
                first = group["params"][0]
                rate = partial(self._rate, group)
                group["lr"] = of_step(rate, step, first.device, first.dtype)
                if self.config.final_weight_decay is not None and group.get("decayed", True):
                    group["weight_decay"] = of_step(self._decay, step, first.device)
        if self.config.max_gradient_norm is not None:
            clip_each_gradient(self.parameters, self.config.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.set_rates(step)

    def set_rates(self, step: int) -> None:
        """Set the rates of a step as numbers, as checkpoints hold them."""
        decay = self._decay(step)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(group, step)
            group["weight_decay"] = decay if group.get("decayed", True) else 0.0

    def _rate(self, group: Mapping[str, Any], step: int) -> float:
        scheduled = group.get("scheduled", True)
        rate = self.learning_rate(step) if scheduled else self.optimizer.defaults["lr"]
        return float(rate * group.get("rate", 1.0))

    def _decay(self, step: int) -> float:
        steps = self.epochs * self.steps_per_epoch
        return self.config.weight_decay_at(self._planned_at(step) / steps)

    def _planned_at(self, step: int) -> int:
        """Return the step of the planned run at which the schedules are."""
        return step * self._planned // self.total_steps

    def step_of(self, planned: int) -> int:
        """Return the first step at which the schedules have reached a step of the planned run."""
        return -(-planned * self.total_steps // self._planned)

    @property
    def may_be_captured(self) -> bool:
        """True if its steps differ only in numbers that may be tensors."""
        return self.config.name == "adamw" or self.config.final_weight_decay is None

    def learning(self, epoch: int) -> tuple[bool, ...]:
        """Return for each group whether it learns in this epoch."""
        groups = self.optimizer.param_groups
        return tuple(group.get("from_epoch", 0) <= epoch for group in groups)

    def thaws_after(self, epoch: int) -> bool:
        """Return whether more parameters start to learn after this epoch, so that later steps take
        longer."""
        return any(group.get("from_epoch", 0) > epoch for group in self.optimizer.param_groups)

    def thaw(self, epoch: int) -> None:
        """Enable gradients of the parameters that learn in this epoch; the others get no gradient,
        at no cost."""
        for group in self.optimizer.param_groups:
            if "from_epoch" in group:
                for parameter in group["params"]:
                    parameter.requires_grad_(epoch >= group["from_epoch"])


@torch.no_grad()
def clip_each_gradient(parameters: Iterable[nn.Parameter], norm: float) -> None:
    """g ← g · min(1, norm / ‖g‖) for each tensor, in place, as DINO's published code does."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    shares = torch._foreach_div(torch._foreach_norm(gradients), norm)
    torch._foreach_clamp_min_(shares, 1.0)
    torch._foreach_div_(gradients, shares)
