"""A step in bf16, whose weights are cast once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hexa.objective import ObjectiveConfig
from hexa.training import step as steps
from hexa.training.optimizers import OptimizerConfig, ScheduledOptimizer, build
from hexa.training.schedules import ScheduleConfig
from tests.laws.cases import BATCH, Case

CPU = torch.device("cpu")


@pytest.mark.parametrize("split", [False, True])
def test_weights_cast_once(monkeypatch: pytest.MonkeyPatch, split: bool) -> None:
    """The same gradients, bit for bit, as with a cast in every pass; also if the first is without gradient."""
    share = 0.5 if split else 1.0
    hard = {"vat": {"fraction": share}}
    case = Case("simsiam" if not split else "moco", {"bn_groups": 1}, hard)
    found = list[list[Tensor]]()
    casts = list[int]()
    for often in (False, True):
        if often:
            monkeypatch.setattr(steps.torch, "autocast", lambda *_, **__: torch.enable_grad())
        method = case.build(torch.float32)
        objective = case.objective(
            method,
            ObjectiveConfig(split=split, clean_fraction=share),
            autocast=lambda: torch.amp.autocast_mode.autocast("cpu", dtype=torch.bfloat16),
        )
        config = OptimizerConfig()
        optimizer = ScheduledOptimizer(
            build(method.parameters(), config, BATCH), config, ScheduleConfig(), 1, 5
        )
        gradients = list[Tensor]()

        def ready(
            kept: list[Tensor] = gradients, optimizer: ScheduledOptimizer = optimizer
        ) -> None:
            kept += [p.grad.clone() for p in optimizer.parameters if p.grad is not None]

        with torch.profiler.profile() as seen:
            steps.step(objective, optimizer, case.batch(dtype=torch.float32), 0, ready=ready)
        found.append(gradients)
        casts.append(sum(event.name == "aten::_to_copy" for event in seen.events()))
    assert len(found[0]) == len(found[1]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert casts[0] < casts[1]
