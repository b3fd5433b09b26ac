"""What only a GPU can show: a step in bf16 that never makes the host wait."""

from __future__ import annotations

import pytest
import torch

from hexa.core import Batch, Objective
from hexa.runtime.precision import autocast
from tests.laws.cases import Case, batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SCHEMES = [
    {"adversarial": {}, "cutmix": {}, "cmxA": {"kind": "cutmix", "source": "adversarial"}},
    {"adversarial": {"norm": "l2", "unit": "pixel", "steps": 2, "generation": "aux_eval"}},
    {"cutmix": {"per_sample": True}},
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("positives", ["separate", "pair", "batch"])
def test_a_step_in_bf16_is_finite_and_never_waits_for_the_device(scheme: dict, positives: str) -> None:
    device = torch.device("cuda")
    case = Case("moco", {"mixed_positives": positives}, scheme)
    method = case.build(torch.float32).to(device, memory_format=torch.channels_last)
    hard = {name: entry.build() for name, entry in case.hard().items()}
    objective = Objective(method, hard, autocast=lambda: autocast("bf16", device))
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for step in range(3):
        cpu = batch(step, dtype=torch.float32)
        data = Batch(tuple(crop.to(device) for crop in cpu.crops), cpu.index.to(device), cpu.stream)
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            for term in objective.losses(data):
                term.loss.backward()
                losses.append(term.loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            objective.commit(data)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.stack(losses).isfinite().all())


def test_cpu_and_gpu_agree_in_fp32() -> None:
    case = Case("moco", {}, {"adversarial": {}, "cutmix": {}})
    found = []
    for device in ("cpu", "cuda"):
        method = case.build(torch.float64).to(device)
        data = batch()
        moved = Batch(tuple(crop.to(device) for crop in data.crops), data.index.to(device), data.stream)
        losses = []
        for term in case.objective(method).losses(moved):
            term.loss.backward()
            losses.append(term.loss.detach().cpu())
        found.append(torch.stack(losses))
    torch.testing.assert_close(found[0], found[1], atol=1e-9, rtol=1e-9)
