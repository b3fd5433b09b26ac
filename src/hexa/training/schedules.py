"""Learning-rate schedules as closed forms of the absolute step, so that a resume cannot change them
(F11)."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from hexa.config import Config, PositiveShare, field_error


class ScheduleConfig(Config):
    """The learning-rate schedule; all values are shares of the optimizer's learning rate (F4, F10,
    F11)."""

    kind: Literal["cosine", "steps", "constant"] = "cosine"
    """cosine: half a cosine down to `final_share`. steps: multiply by `gamma` at each milestone.
    constant: no change."""
    per: Literal["epoch", "step"] = "epoch"
    """cosine only: update once per epoch (MoCo) or at every step (SwAV)."""
    final_share: NonNegativeFloat = 0.0
    """cosine only: final learning rate, as a share of the learning rate (SwAV: 0.001)."""
    milestones: tuple[PositiveInt, ...] = (120, 160)
    """steps only: epochs at which the rate drops (MoCo v1)."""
    gamma: PositiveFloat = 0.1
    """steps only: factor of each drop."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Number of epochs of linear warm-up, updated at every step, before the schedule."""
    warmup_at_most: PositiveShare = 1.0
    """Upper limit of the warm-up, as a share of the run, so that short runs keep most of the
    schedule."""
    warmup_start_share: NonNegativeFloat = 0.0
    """Initial learning rate of the warm-up, as a share of the learning rate (SwAV: 0.3 / 4.8)."""

    def warmup_length(self, epochs: int) -> float:
        """Return the number of warm-up epochs in a run of `epochs`."""
        return min(self.warmup_epochs, self.warmup_at_most * epochs)

    def check(self, epochs: int) -> None:
        """Raise ConfigError if the warm-up takes the whole run of `epochs`."""
        if self.warmup_length(epochs) >= epochs:
            raise field_error(
                "schedule.warmup_epochs",
                f"{self.warmup_epochs:g} epochs are too long for a run of {epochs}; use fewer",
            )


def learning_rate_share(
    config: ScheduleConfig, step: int, epochs: int, steps_per_epoch: int
) -> float:
    """Return the share of the learning rate at an absolute step, 0 … epochs · steps_per_epoch − 1.

    cosine: f + (1 − f) · ½ (1 + cos(π · t / T)), f the final share; t and T count epochs or steps
    after the warm-up. MoCo: t = e = 0 … E − 1, T = E.
    steps: γ^(milestones passed).
    Warm-up over w = warmup_epochs · steps_per_epoch points, both ends included: s + (1 − s) · step
    / (w − 1) (F4, F10, F11).
    """
    warmup_epochs = config.warmup_length(epochs)
    warmup = round(warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.warmup_start_share + (1 - config.warmup_start_share) * step / max(
            1, warmup - 1
        )
    epoch = step // steps_per_epoch
    if config.kind == "constant":
        return 1.0
    if config.kind == "steps":
        return config.gamma ** sum(epoch >= milestone for milestone in config.milestones)
    if config.per == "step":
        passed = (step - warmup) / (epochs * steps_per_epoch - warmup)
    else:
        passed = max(0.0, epoch - warmup_epochs) / (epochs - warmup_epochs)
    return config.final_share + (1 - config.final_share) * 0.5 * (1 + math.cos(math.pi * passed))
