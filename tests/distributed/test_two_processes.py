"""Law 7: two processes at half the batch equal one process, for MoCo × every hard example (fp64, no batch-norm)."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from hexa.core import Batch, Objective, Setting
from hexa.hard_examples.cutmix import CutMix
from hexa.methods.moco import MoCo, MoCoConfig
from hexa.runtime import processes
from hexa.runtime.random import Stream
from tests.laws.cases import BATCH, Case, batch

HALF = BATCH // 2
SCHEMES: dict[str, dict[str, dict[str, Any]]] = {
    "std": {},
    "adversarial": {"adversarial": {}},
    "l2": {"adversarial": {"norm": "l2", "unit": "pixel", "steps": 2}},
    "cutmix": {"cutmix": {}},
    "cutmix_per_sample": {"cutmix": {"per_sample": True}},
    "all": {"adversarial": {}, "cutmix": {}, "cmxA": {"kind": "cutmix", "source": "adversarial"}},
}
VARIANTS = [{}, {"symmetric": True}]


def network() -> nn.Module:
    """Without batch-norm, so that images meet only in the loss."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 6))
    body.num_features = 6
    return body


class OfTwoProcesses(CutMix):
    """What two processes draw, drawn by one: each half is mixed within itself."""

    def permutation(self, count: int, stream: Stream) -> torch.Tensor:
        halves = [
            torch.randperm(count // 2, generator=stream.child("permutation", rank).generator()) for rank in range(2)
        ]
        return torch.cat([halves[0], halves[1] + count // 2])

    def boxes(self, count: int, size: int, stream: Stream) -> torch.Tensor:
        if not self.config.per_sample:
            return super().boxes(count, size, stream)
        maker = CutMix(self.config.model_copy(update={"per_sample": True}))
        found = []
        for rank in range(2):
            original, processes.rank = processes.rank, lambda rank=rank: rank
            try:
                found.append(maker.boxes(count // 2, size, stream))
            finally:
                processes.rank = original
        return torch.cat(found)


def train(scheme: str, variant: dict[str, Any], world_size: int, rows: slice, as_two: bool) -> dict[str, torch.Tensor]:
    case = Case("moco", variant, SCHEMES[scheme])
    config = MoCoConfig(queue_size=32, dim=5, **variant)
    method = MoCo(config, network(), Setting(64, BATCH, world_size=world_size, branches=("main", "aux"))).double()
    makers = {name: entry.build() for name, entry in case.hard().items()}
    if as_two:
        makers = {n: OfTwoProcesses(m.config) if isinstance(m, CutMix) else m for n, m in makers.items()}
    objective = Objective(method, makers)
    parameters = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    result = {}
    for step in range(2):
        whole = batch(step)
        data = Batch(tuple(crop[rows] for crop in whole.crops), whole.index[rows], whole.stream)
        for term in objective.losses(data):
            term.loss.backward()
        processes.average_gradients(parameters)
        result |= {f"gradient {step} {n}": p.grad.clone() for n, p in method.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        objective.commit(data)
    return result | method.state_dict()


def work(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    processes.initialize()
    results = {
        (scheme, i): train(scheme, variant, 2, slice(rank * HALF, (rank + 1) * HALF), False)
        for scheme in SCHEMES
        for i, variant in enumerate(VARIANTS)
    }
    torch.save(results, f"{folder}/{rank}.pt")
    processes.shutdown()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, int], dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, str(folder)), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_processes_equal_one(two: list[Any], scheme: str, variant: int) -> None:
    """Gradients and parameters after two steps within 1e-12 of one process; identical on both ranks, queue included."""
    one = train(scheme, VARIANTS[variant], 1, slice(None), True)
    first, second = (results[scheme, variant] for results in two)
    assert first.keys() == one.keys() == second.keys()
    for name, value in one.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, atol=1e-12, rtol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
