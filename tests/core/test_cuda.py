"""What only a GPU can show: a step in bf16 that never makes the host wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hexa.config import choices
from hexa.core import Batch, MethodConfig, Objective
from hexa.runtime.precision import autocast
from tests.laws.cases import Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SCHEMES = [
    {"adversarial": {}, "cutmix": {}, "cmxA": {"kind": "cutmix", "source": "adversarial"}},
    {"adversarial": {"norm": "l2", "unit": "pixel", "steps": 2, "generation": "aux_eval"}},
    {"cutmix": {"per_sample": True}},
]


METHODS = sorted(choices(MethodConfig, "name", "hexa.methods"))
CASES = [Case(method, {}, scheme) for method in METHODS for scheme in SCHEMES]
CASES += [Case("moco", {"mixed_positives": positives}, SCHEMES[0]) for positives in ("pair", "batch")]


def on(device: str, data: Batch) -> Batch:
    return replace(data, crops=tuple(crop.to(device) for crop in data.crops), index=data.index.to(device))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_in_bf16_is_finite_and_never_waits_for_the_device(case: Case) -> None:
    device = torch.device("cuda")
    method = case.build(torch.float32).to(device, memory_format=torch.channels_last)
    hard = case.hard()
    objective = Objective(method, hard, autocast=lambda: autocast("bf16", device))
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for step in range(3):
        data = on("cuda", case.batch(step, dtype=torch.float32))
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


@pytest.mark.parametrize("name", METHODS)
def test_cpu_and_gpu_agree(name: str) -> None:
    case = Case(name, {}, {"adversarial": {}, "cutmix": {}})
    found = []
    for device in ("cpu", "cuda"):
        method = case.build(torch.float64).to(device)
        losses = []
        for term in case.objective(method).losses(on(device, case.batch())):
            term.loss.backward()
            losses.append(term.loss.detach().cpu())
        found.append(torch.stack(losses))
    torch.testing.assert_close(found[0], found[1], atol=1e-9, rtol=1e-9)
