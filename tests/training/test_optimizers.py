"""SGD against its own definition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hexa.training.optimizers import OptimizerConfig, build


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_follows_its_formula(nesterov: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    untouched = nn.Parameter(torch.ones(2, dtype=torch.float64))
    config = OptimizerConfig(learning_rate=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    optimizer = build([parameter, frozen, untouched], config, batch_size=64)
    theta, velocity = parameter.detach().clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(5, generator=generator, dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        decayed = gradient + 0.01 * theta
        velocity = 0.9 * velocity + decayed
        theta = theta - 0.1 * (decayed + 0.9 * velocity if nesterov else velocity)
    torch.testing.assert_close(parameter.detach(), theta, rtol=1e-12, atol=1e-12)
    # a parameter without gradient is left alone, not decayed
    assert torch.equal(untouched, torch.ones(2, dtype=torch.float64))


def test_the_rate_scales_with_the_batch() -> None:
    assert OptimizerConfig(learning_rate=0.03).scaled_learning_rate(512) == 0.03
    assert OptimizerConfig(learning_rate=0.03, base_batch_size=256).scaled_learning_rate(512) == pytest.approx(0.06)
    optimizer = build([nn.Parameter(torch.zeros(1))], OptimizerConfig(learning_rate=0.03, base_batch_size=256), 128)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.015)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValueError, match="momentum above 0"):
        OptimizerConfig(nesterov=True, momentum=0.0)
