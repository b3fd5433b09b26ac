"""A step in bf16, whose weights are cast once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from hexa.objective import ObjectiveConfig
from hexa.training import step as steps
from tests.laws.cases import Case
from tests.training.toy import scheduled


@pytest.mark.parametrize("split", [False, True])
def test_weights_cast_once(monkeypatch: pytest.MonkeyPatch, split: bool) -> None:
    """The same gradients, bit for bit, as with a cast in every pass; also if the first is without gradient."""
    share = 0.5 if split else 1.0
    case = Case("moco" if split else "simsiam", {"bn_groups": 1}, {"vat": {"fraction": share}})

    def taken() -> tuple[list[Tensor], int]:
        """Return the gradients of a step, and the number of casts."""
        method = case.build(torch.float32)
        objective = case.objective(
            method,
            ObjectiveConfig(split=split, clean_fraction=share),
            autocast=partial(torch.amp.autocast_mode.autocast, "cpu", dtype=torch.bfloat16),
        )
        optimizer = scheduled(method, 1, 5)
        gradients = list[Tensor]()

        def ready() -> None:
            gradients.extend(p.grad.clone() for p in optimizer.parameters if p.grad is not None)

        with torch.profiler.profile() as seen:
            steps.step(objective, optimizer, case.batch(dtype=torch.float32), 0, ready=ready)
        return gradients, sum(event.name == "aten::_to_copy" for event in seen.events())

    found, casts = taken()
    monkeypatch.setattr(steps.torch, "autocast", lambda *_, **__: torch.enable_grad())
    expected, more = taken()
    assert len(found) == len(expected) > 10
    assert all(map(torch.equal, found, expected))
    assert casts < more
