"""Optimizers by name, and what sets their rates. A new one needs a branch in `_made` and a name in the config."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from hexa.training.muon import Muon, move
from hexa.training.schedules import ScheduleConfig, learning_rate_share


class OptimizerConfig(Config):
    """What turns gradients into steps. The defaults are MoCo's (F4)."""

    name: Literal["sgd", "larc", "lars", "adamw", "muon"] = "sgd"
    """sgd: v ← μ·v + (g + λ·θ); θ ← θ − lr·v. larc: the same with g + λ·θ scaled by a trust ratio per tensor, which is
    `trust` · ‖θ‖ / (‖g‖ + λ·‖θ‖ + 1e-8), and 1 where θ or g is zero; batch-norms and biases too (F10, F11). lars:
    the same, but batch-norms and biases neither scaled nor decayed (F6). adamw: decoupled decay, not of
    batch-norms and biases, β (0.9, 0.999). muon: convolutions turn along orthogonalised momentum, all else is as by
    sgd, at `other_rate`."""
    learning_rate: PositiveFloat = 0.03
    """The rate at `base_batch_size`, or at any batch size if that is not given; of muon the angle in radians by which a
    step turns a convolution."""
    base_batch_size: PositiveInt | None = None
    """Scale the rate linearly: learning_rate · batch_size / base_batch_size. none: not scaled."""
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """μ."""
    weight_decay: NonNegativeFloat = 1e-4
    """λ; sgd and larc: on every parameter, as MoCo does: batch-norms and biases too (F10). muon: no convolution."""
    other_rate: PositiveFloat = 0.03
    """muon only: the rate of all that is not a convolution. Schedule and batch size scale it as `learning_rate`."""
    trust: PositiveFloat = 0.001
    """larc and lars only: the trust coefficient."""
    max_gradient_norm: PositiveFloat | None = None
    """Scale the gradient of each parameter tensor down to this norm where it is longer (DINO); none leaves it."""
    final_weight_decay: NonNegativeFloat | None = None
    """Where weight decay goes by half a cosine over the run (DINO); none keeps it."""
    nesterov: bool = False
    """Look one step of momentum ahead."""

    @pydantic.model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimizerConfig:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.nesterov and self.name == "muon":
            raise ValueError(
                "nesterov is for sgd, larc and lars; muon looks ahead where convolutions turn"
            )
        return self

    def weight_decay_at(self, share: float) -> float:
        """λ when this share of the run's steps is done."""
        if self.final_weight_decay is None:
            return self.weight_decay
        rest = self.weight_decay - self.final_weight_decay
        return self.final_weight_decay + rest * 0.5 * (1 + math.cos(math.pi * share))


class Pace(NamedTuple):
    """How a parameter learns: at this share of the learning rate, from this epoch on."""

    rate: float = 1.0
    from_epoch: int = 0


class SGD(torch.optim.SGD):
    """torch's SGD, except that the rate may be a 0-d tensor on the device, which torch would read on the host."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change the parameters that have a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            steps: Any = [parameter.grad for parameter in parameters]
            if group["weight_decay"]:
                steps = torch._foreach_add(steps, parameters, alpha=group["weight_decay"])
            if group["momentum"]:
                velocities = self._velocities(parameters, steps, group["momentum"])
                if group["nesterov"]:
                    velocities = torch._foreach_add(steps, velocities, alpha=group["momentum"])
                steps = velocities
            move(parameters, steps, group["lr"])

    def _velocities(
        self, parameters: list[nn.Parameter], steps: Sequence[Tensor], momentum: float
    ) -> Sequence[Tensor]:
        """v ← μ·v + g, which begins with g."""
        states = [self.state[parameter] for parameter in parameters]
        kept = [state.get("momentum_buffer") is not None for state in states]
        old = [state["momentum_buffer"] for state in itertools.compress(states, kept)]
        if old:
            torch._foreach_mul_(old, momentum)
            torch._foreach_add_(old, list(itertools.compress(steps, kept)))
        for state, step, known in zip(states, steps, kept, strict=True):
            if not known:
                state["momentum_buffer"] = step.clone()
        return [state["momentum_buffer"] for state in states]


#: Those that leave batch-norms and biases alone, but for the plain step.
_SPARE_VECTORS = {"lars", "adamw"}
#: Those that take a rate that is a tensor, and keep no numbers on the host.
_CAPTURABLE = {"sgd", "muon"}


def build(
    parameters: Iterable[nn.Parameter],
    config: OptimizerConfig,
    batch_size: int,
    unscheduled: Iterable[nn.Parameter] = (),
    paces: Mapping[nn.Parameter, Pace] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """The optimizer of all parameters that require a gradient; its default rate is that for `batch_size` (global).

    Groups have `scheduled`, whether their rate follows the schedule, `decayed`, and the `rate` and `from_epoch` of a
    pace. Parameters whose gradient is None in a step are left as they are, not decayed (F10).
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
        return torch.optim.AdamW(groups, **common)
    if config.name == "muon":
        return Muon(groups, momentum=config.momentum, **common)
    common |= {"momentum": config.momentum, "nesterov": config.nesterov}
    if config.name == "sgd":
        return SGD(groups, **common)
    from timm.optim.lars import Lars  # here: it takes a while to import

    made: torch.optim.Optimizer = Lars(
        groups, trust_coeff=config.trust, eps=1e-8, trust_clip=False, **common
    )
    for group in made.param_groups:
        # by default timm scales what has a weight decay above 0
        group["always_adapt"] = config.name not in _SPARE_VECTORS or group["params"][0].ndim > 1
    return made


@dataclass(eq=False)
class ScheduledOptimizer:
    """An optimizer and how its rates move over a run: the only place that sets them, at every step.

    optimizer: what `build` gave; its default rate is the one that the schedule takes shares of.
    total_steps: the step after which the run ends, `epochs` or `max_steps`. Whoever changes it stretches the schedule.
    """

    optimizer: torch.optim.Optimizer
    config: OptimizerConfig
    schedule: ScheduleConfig
    epochs: int
    steps_per_epoch: int
    max_steps: InitVar[int | None] = None
    capturable: bool = False
    """Give the optimizer its rates as tensors on the device, so that a CUDA graph of a step serves all steps."""

    def __post_init__(self, max_steps: int | None) -> None:
        steps = self.epochs * self.steps_per_epoch
        self._planned = self.total_steps = min(steps, max_steps or steps)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        at = step * self._planned // self.total_steps
        share = learning_rate_share(self.schedule, at, self.epochs, self.steps_per_epoch)
        return float(self.optimizer.defaults["lr"] * share)

    def step(self, step: int) -> None:
        """Change the parameters by their gradients, at the rates of this step, and drop the gradients."""
        self.set_rates(step)
        if self.capturable:
            for group in self.optimizer.param_groups:
                first = group["params"][0]
                rate = partial(self._rate, group)
                group["lr"] = of_step(rate, step, first.device, first.dtype)
        if self.config.max_gradient_norm is not None:
            clip_each_gradient(self.parameters, self.config.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.set_rates(step)

    def set_rates(self, step: int) -> None:
        """Set the rates of a step, as numbers; checkpoints hold these."""
        decay = self.config.weight_decay_at(step / self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(group, step)
            group["weight_decay"] = decay if group.get("decayed", True) else 0.0

    def _rate(self, group: Mapping[str, Any], step: int) -> float:
        scheduled = group.get("scheduled", True)
        rate = self.learning_rate(step) if scheduled else self.optimizer.defaults["lr"]
        return float(rate * group.get("rate", 1.0))

    @property
    def may_be_captured(self) -> bool:
        """True if all that differs between its steps are rates that may be tensors."""
        return self.config.name in _CAPTURABLE and self.config.final_weight_decay is None

    def learning(self, epoch: int) -> tuple[bool, ...]:
        """Of each group, whether it learns in this epoch."""
        groups = self.optimizer.param_groups
        return tuple(group.get("from_epoch", 0) <= epoch for group in groups)

    def thaws_after(self, epoch: int) -> bool:
        """Whether parameters that do not learn in this epoch learn later, so that later steps take longer."""
        return any(group.get("from_epoch", 0) > epoch for group in self.optimizer.param_groups)

    def thaw(self, epoch: int) -> None:
        """Have the parameters learn that do so in this epoch; the others get no gradient, and cost none."""
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
