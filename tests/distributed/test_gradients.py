"""Averaged gradients: bit-identical however they are sent, and whoever has one. Images that change places; patience."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hexa.core import MAIN
from hexa.nn.branch_norm import convert, use_branch
from hexa.runtime import gradients, processes
from hexa.runtime.gradients import GradientAverage
from tests.distributed.together import run_together


def network() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(4, 4) for _ in range(5))


def data(step: int, rank: int) -> torch.Tensor:
    return torch.rand(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def first_term(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return layers[3](layers[0](x)).square().sum()


def second_term(
    layers: nn.ModuleList,
    x: torch.Tensor,
    step: int,
    rank: int,
) -> torch.Tensor:
    hidden = layers[3](x)
    if 2 <= step < 4:
        hidden = layers[1](hidden)
    if rank:
        hidden = layers[2](hidden)
    return layers[4](hidden).square().sum()


def steps(bucket: int) -> tuple[list[list[torch.Tensor | None]], list[int]]:
    """Gradients of six steps of two terms, and how many buckets were sent before the last backward pass ended.

    Layer 0 is in the first term alone, layer 1 begins in step 2 and ends in step 4, layer 2 is used by process 1 alone.
    """
    gradients._BUCKET = bucket
    layers = network()
    average = GradientAverage(layers.parameters())
    found = []
    early = []
    for step in range(6):
        x = data(step, processes.rank())
        first_term(layers, x).backward()
        with average.sending():
            second_term(layers, x, step, processes.rank()).backward()
        early.append(len(average._sent))
        average.finish()
        found.append([None if p.grad is None else p.grad.clone() for p in layers.parameters()])
        layers.zero_grad()
    return found, early


def with_statistics() -> list[list[float]]:
    """Gradient sums of three steps with SyncBN, whose last layer process 1 uses in the first step alone."""
    gradients._BUCKET = 1
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
    )
    convert(body, ("main",), 1)
    layers = nn.ModuleList([body, nn.Linear(4, 4), nn.Linear(4, 4)])
    average = GradientAverage(layers.parameters())
    x = torch.rand(4, 3, 8, 8)
    found = []
    for step in range(3):
        with use_branch(layers, MAIN):
            features = layers[0](x).square().mean((2, 3))
        loss = layers[1](features).square().mean()
        if step == 0 or processes.is_main():
            loss = loss + layers[2](features).square().mean()
        with average.sending():
            loss.backward()
        average.finish()
        gradients_now = [p.grad for p in layers.parameters()]
        found.append([float(gradient.abs().sum()) for gradient in gradients_now])
        layers.zero_grad()
    return found


def work() -> dict[str, Any]:
    found: dict[str, Any] = {"small": steps(1), "large": steps(2**20)}
    found["with statistics"] = with_statistics()
    rows = torch.arange(24, dtype=torch.uint8).view(8, 3, 1, 1).expand(8, 3, 2, 2).contiguous()
    own = rows[4 * processes.rank() :][:4]
    found["taken"] = []
    for seed in range(5):
        places = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        mine = places[4 * processes.rank() :][:4]
        found["taken"].append(torch.equal(processes.take_rows(own, places), rows[mine]))
    # a main process that works for longer than a collective may take
    dist.set_timeout(timedelta(seconds=1))
    if processes.is_main():
        time.sleep(3)
    processes.barrier()
    return found


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run_together(2, work)


def test_means(two: list[dict[str, Any]]) -> None:
    """One bucket a tensor and one of all give the mean, bit for bit; a gradient that nobody has stays missing."""
    first, second = two
    for step in range(6):
        alone = []
        for rank in range(2):
            layers = network()
            x = data(step, rank)
            first_term(layers, x).backward()
            second_term(layers, x, step, rank).backward()
            alone.append([p.grad for p in layers.parameters()])
        for number, pair in enumerate(zip(*alone, strict=True)):
            there = [value for value in pair if value is not None]
            for sent in (first, second):
                for kind in ("small", "large"):
                    value = sent[kind][0][step][number]
                    assert (value is None) == (not there)
                    if there:
                        assert torch.equal(value, sum(there) / 2)


def test_conditional_layer_with_statistics(two: list[dict[str, Any]]) -> None:
    """A layer that one process uses halves its gradient, and batch-norms share their statistics."""
    first, second = (one["with statistics"] for one in two)
    assert first == second
    both, one, again = first
    assert one == again
    halves = [value / 2 for value in both[-2:]]
    assert one[-2:] == pytest.approx(halves, rel=1e-5)


def test_early_sending(two: list[dict[str, Any]]) -> None:
    """From the second step on, the layers that process 0 reaches are sent during its backward pass.

    Large buckets hold several layers, so fewer are sent.
    """
    small = two[0]["small"][1]
    assert small[0] == 0
    assert all(count >= 2 for count in small[1:])
    large = two[0]["large"][1]
    assert all(joined < single for joined, single in zip(large[1:], small[1:], strict=True))


def test_rows_change_places(two: list[dict[str, Any]]) -> None:
    assert all(result["taken"] == [True] * 5 for result in two)
