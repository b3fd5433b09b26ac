"""Statistics over four processes against torch's batch-norm of all their images in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hexa.core import Branch
from hexa.nn.branch_norm import convert, use_branch
from hexa.runtime import processes
from tests.distributed.together import run_together
from tests.modules import unchanged

WORLD = 4
#: The images of each process: not the same number, as at the end of a data set.
SHARES = (3, 1, 5, 3)
ROWS = [slice(sum(SHARES[:rank]), sum(SHARES[: rank + 1])) for rank in range(WORLD)]
Results = dict[str, dict[str, Any]]
CASES = {
    f"{groups}-{shape}-{dtype}-{layout}": (groups, shape, dtype, layout)
    for groups in (1, 2)
    for shape in ("plane", "row")
    for dtype in ("float64", "float32", "bfloat16")
    for layout in ("contiguous_format", "channels_last")
    if (shape, layout) != ("row", "channels_last")
}
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 3e-2}


def inputs(
    shape: str,
    dtype: str,
    layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images far from zero, and weights for a loss of the output."""
    generator = torch.Generator().manual_seed(0)
    size = (sum(SHARES), 3, 5, 4) if shape == "plane" else (sum(SHARES), 3)
    pair = [
        torch.randn(size, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
        for _ in range(2)
    ]
    x, weights = (
        p.contiguous(memory_format=getattr(torch, layout)) if shape == "plane" else p for p in pair
    )
    return 2 * x + 3, weights


def plain(shape: str, dtype: str) -> nn.BatchNorm2d | nn.BatchNorm1d:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3) if shape == "plane" else nn.BatchNorm1d(3)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.normal_(norm.bias)
    return norm.double() if dtype == "float64" else norm


def measured(norm: Any, x: torch.Tensor, weights: torch.Tensor) -> dict[str, Any]:
    """Output, gradients and statistics of a pass, the second of two."""
    norm(x)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = norm(x)
    (y * weights).sum().backward()
    found = {"y": y.detach(), "dx": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return found | {
        "mean": norm.running_mean,
        "var": norm.running_var,
        "count": norm.num_batches_tracked,
    }


def work() -> Results:
    found: Results = {}
    for name, (groups, shape, dtype, layout) in CASES.items():
        network = convert(nn.Sequential(plain(shape, dtype)), groups=groups)
        x, weights = (tensor[ROWS[processes.rank()]] for tensor in inputs(shape, dtype, layout))
        with use_branch(network):
            found[name] = measured(network[0], x, weights)
        with unchanged(network), use_branch(network, Branch("aux", update=False)):
            network(x)
        assert found[name]["y"].stride() == found[name]["dx"].stride() == x.stride(), (
            "the layout is kept"
        )
        assert found[name]["y"].dtype == x.dtype
    return found


@pytest.fixture(scope="module")
def results() -> list[Results]:
    return run_together(WORLD, work)


@pytest.mark.parametrize("name", CASES)
def test_synchronized_group_statistics(results: list[Results], name: str) -> None:
    """G = 1: all four together; G = 2: two and two, running statistics by the mean over both."""
    groups, shape, dtype, layout = CASES[name]
    tolerance = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    ours = [result[name] for result in results]
    x, weights = inputs(shape, dtype, layout)
    parts = [range(WORLD)] if groups == 1 else [range(2), range(2, 4)]
    statistics = []
    for ranks in parts:
        rows = slice(ROWS[ranks[0]].start, ROWS[ranks[-1]].stop)
        theirs = measured(plain(shape, dtype), x[rows], weights[rows])
        statistics.append(theirs)
        for key in ("y", "dx"):
            torch.testing.assert_close(
                torch.cat([ours[rank][key] for rank in ranks]), theirs[key], **tolerance
            )
        for key in ("weight", "bias"):
            torch.testing.assert_close(
                sum(ours[rank][key] for rank in ranks), theirs[key], **tolerance
            )
    for key in ("mean", "var", "count"):
        expected = torch.stack([theirs[key].double() for theirs in statistics]).mean(0)
        found = ours[0][key].double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(ours[0][key], other[key]) for other in ours)
