"""Closed forms of schedules against loops with state, as in the published code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hexa.config import ConfigError
from hexa.training.schedules import ScheduleConfig, learning_rate_share


def rates(config: ScheduleConfig, epochs: int, steps: int, base: float = 1.0) -> list[float]:
    return [
        base * learning_rate_share(config, step, epochs, steps) for step in range(epochs * steps)
    ]


def test_cosine_per_epoch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    expected = []
    for _ in range(9):
        expected += [optimizer.param_groups[0]["lr"]] * 4
        optimizer.step()
        scheduler.step()
    assert rates(ScheduleConfig(), 9, 4, 0.3) == pytest.approx(expected, rel=1e-9)


def test_cosine_per_step_warmup() -> None:
    """The cosine per step with warm-up is SwAV's."""
    base = 4.8
    final = 0.0048
    start = 0.3
    warm = 2
    epochs = 6
    steps = 5
    expected = np.linspace(start, base, warm * steps).tolist()
    length = (epochs - warm) * steps
    for t in range(length):
        expected.append(final + 0.5 * (base - final) * (1 + math.cos(math.pi * t / length)))
    config = ScheduleConfig(
        per="step", final_share=final / base, warmup_epochs=warm, warmup_start_share=start / base
    )
    assert rates(config, epochs, steps, base) == pytest.approx(expected, rel=1e-12)


def test_milestone_schedule() -> None:
    """Steps fall at milestones."""
    config = ScheduleConfig(kind="steps", milestones=(2, 4), gamma=0.1)
    rate = 1.0
    expected = []
    for epoch in range(6):
        if epoch in (2, 4):
            rate *= 0.1
        expected += [rate] * 2
    assert rates(config, 6, 2) == pytest.approx(expected)


def test_warmup_before_cosine() -> None:
    """A warm-up leads into a cosine per epoch."""
    found = rates(ScheduleConfig(warmup_epochs=1, warmup_start_share=0.5), epochs=3, steps=3)
    assert found == pytest.approx([0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5])


def test_milestones_are_positive_and_a_warm_up_leaves_something() -> None:
    ScheduleConfig(warmup_epochs=4).check(5)
    with pytest.raises(ConfigError, match=r"schedule\.warmup_epochs"):
        ScheduleConfig(warmup_epochs=5).check(5)
    with pytest.raises(ValueError, match="milestones"):
        ScheduleConfig(milestones=(0, 5))


def test_warmup_share_limit() -> None:
    """A warm-up takes at most its share of a short run."""
    config = ScheduleConfig(kind="constant", warmup_epochs=8, warmup_at_most=0.25)
    config.check(2)
    assert config.warmup_length(40) == 8
    assert config.warmup_length(2) == 0.5
    shares = [learning_rate_share(config, step, 2, 10) for step in range(20)]
    assert shares[0] == 0
    assert all(share == 1 for share in shares[4:])
