"""Optimizers against their own definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hexa.training.muon import orthogonalised
from hexa.training.optimizers import OptimizerConfig, ScheduledOptimizer, build
from hexa.training.schedules import ScheduleConfig

CONSTANT = ScheduleConfig(kind="constant")


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_formula(nesterov: bool) -> None:
    """Equal to torch's; a parameter without gradient is left alone, not decayed."""
    ours = parameter(5)
    theirs = nn.Parameter(ours.detach().clone())
    untouched = nn.Parameter(torch.ones(2))
    how: Any = {"momentum": 0.9, "weight_decay": 0.01, "nesterov": nesterov}
    optimizer = build([ours, untouched], OptimizerConfig(learning_rate=0.1, **how), 64)
    expected = torch.optim.SGD([theirs], lr=0.1, **how)
    for _ in range(3):
        ours.grad = torch.randn_like(ours)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        expected.step()
    torch.testing.assert_close(
        ours,
        theirs,
        rtol=1e-12,
        atol=1e-12,
    )
    assert torch.equal(untouched, torch.ones(2))


@pytest.mark.parametrize("fields", [{"momentum": 0.0}, {"name": "muon"}])
def test_refused_nesterov(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"nesterov (needs momentum above 0|is for sgd, larc)"):
        OptimizerConfig(nesterov=True, **fields)


@pytest.mark.parametrize(("name", "decay"), [("larc", 0.01), ("lars", 0.1), ("lars", 0.0)])
def test_layer_wise_formula(name: Any, decay: float) -> None:
    """F10, F11 on a weight and a bias that starts at zero; LARS neither scales nor decays a bias (F6)."""
    weight = parameter(3, 4)
    bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    config = OptimizerConfig(
        name=name,
        learning_rate=0.5,
        momentum=0.9,
        weight_decay=decay,
    )
    optimizer = build([weight, bias], config, 64)
    theta = {p: p.detach().clone() for p in (weight, bias)}
    velocity = {p: torch.zeros_like(p) for p in (weight, bias)}
    for _ in range(3):
        for p, value in theta.items():
            gradient = torch.randn_like(p)
            p.grad = gradient.clone()
            size = value.norm()
            if size > 0 and (name == "larc" or p is weight):
                rate = 0.001 * size / (gradient.norm() + decay * size + 1e-8)
                gradient = rate * (gradient + decay * value)
            velocity[p] = 0.9 * velocity[p] + gradient
            value -= 0.5 * velocity[p]
        optimizer.step()
        for p, value in theta.items():
            torch.testing.assert_close(p.detach(), value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["lars", "adamw"])
def test_undecayed_biases(name: Any) -> None:
    """F6: rates and weight decay follow their groups."""
    weight = parameter(3, 4)
    biases = [parameter(4) for _ in range(2)]
    config = OptimizerConfig(
        name=name,
        learning_rate=0.1,
        weight_decay=0.1,
        final_weight_decay=0.3,
    )
    optimizer = build([weight, *biases], config, 1, unscheduled=biases[1:])
    made = ScheduledOptimizer(optimizer, config, ScheduleConfig(), 2, 5)
    made.set_rates(5)
    found = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert found == [pytest.approx(pair) for pair in ((0.05, 0.2), (0.05, 0.0), (0.1, 0.0))]


@pytest.mark.parametrize("shape", [(6, 2, 3, 3), (20, 2, 3, 3)])
def test_muon_formula(shape: tuple[int, ...]) -> None:
    """A convolution turns by the given angle and keeps its norm; all else follows SGD."""
    kernel = parameter(*shape)
    weight = parameter(4, 3)
    plain = nn.Parameter(weight.detach().clone())
    config = OptimizerConfig(
        name="muon",
        learning_rate=0.05,
        other_rate=0.1,
        weight_decay=0.01,
    )
    muon = ScheduledOptimizer(build([kernel, weight], config, 64), config, CONSTANT, 1, 3)
    sgd = torch.optim.SGD(
        [plain],
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
    )
    velocity = torch.zeros(shape, dtype=torch.float64)
    for _ in range(3):
        before = kernel.detach().clone()
        kernel.grad = torch.randn_like(kernel)
        weight.grad = torch.randn_like(weight)
        plain.grad = weight.grad.clone()
        velocity = 0.9 * velocity + kernel.grad
        ahead = (kernel.grad + 0.9 * velocity).flatten(1)
        direction = orthogonalised([ahead], together=False)[0].view(shape)
        moved = before - 0.05 * before.norm() * direction / direction.norm()
        muon.step(0)
        sgd.step()
        torch.testing.assert_close(weight, plain, rtol=1e-12, atol=1e-12)
        expected = moved * before.norm() / moved.norm()
        torch.testing.assert_close(kernel.detach(), expected, rtol=1e-9, atol=1e-12)


def test_orthogonalised_matrices() -> None:
    """Singular vectors stay and singular values end near 1, also for several matrices at once."""
    shapes = ((6, 18), (18, 6), (20, 18), (6, 17), (6, 18))
    matrices = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    alone, together = (orthogonalised(matrices, together=way) for way in (False, True))
    for matrix, made, batched in zip(matrices, alone, together, strict=True):
        torch.testing.assert_close(made, batched, rtol=1e-12, atol=1e-12)
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        values = left.T @ made @ right.T
        torch.testing.assert_close(values, values.diagonal().diag(), rtol=0, atol=1e-8)
        assert 0.3 < float(values.diagonal().min()) <= float(values.max()) < 1.3


def test_muon_other_rate() -> None:
    """The other rate scales like the learning rate, and does not unfreeze parameters."""
    kernel = parameter(2, 2, 3, 3)
    weight = parameter(2)
    config = OptimizerConfig(
        name="muon",
        learning_rate=0.02,
        other_rate=0.08,
        base_batch_size=256,
    )
    scheduled = ScheduledOptimizer(build([kernel, weight], config, 128), config, CONSTANT, 2, 3)
    weight.requires_grad_(False)
    scheduled.thaw(0)
    assert not weight.requires_grad
    scheduled.set_rates(0)
    rates = [group["lr"] for group in scheduled.optimizer.param_groups]
    assert rates == pytest.approx([0.01, 0.04])


def test_per_parameter_clipping() -> None:
    """Each gradient is clipped on its own."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    config = OptimizerConfig(
        learning_rate=1.0, momentum=0.0, weight_decay=0.0, max_gradient_norm=1.0
    )
    optimizer = ScheduledOptimizer(build(parameters, config, 1), config, CONSTANT, 1, 1)
    parameters[0].grad = torch.tensor([3.0, 4.0])
    parameters[1].grad = torch.tensor([0.3, 0.4])
    optimizer.step(0)
    found = [p.tolist() for p in parameters]
    assert found == [pytest.approx(steps) for steps in ([-0.6, -0.8], [-0.3, -0.4], [0, 0])]


def test_weight_decay_schedule() -> None:
    """Weight decay follows half a cosine."""
    config = OptimizerConfig(weight_decay=0.04, final_weight_decay=0.4)
    found = [config.weight_decay_at(share) for share in (0, 0.5, 1)]
    assert found == pytest.approx([0.04, 0.22, 0.4])
    assert OptimizerConfig(weight_decay=0.04).weight_decay_at(0.7) == 0.04


def test_planned_schedules() -> None:
    """A run that ends early follows the schedules of all epochs; a longer one stretches them."""
    config = OptimizerConfig(name="adamw", weight_decay=0.04, final_weight_decay=0.4)
    optimizer = build([parameter(2, 2)], config, 1)
    whole, early = (
        ScheduledOptimizer(optimizer, config, ScheduleConfig(), 100, 10, most)
        for most in (None, 100)
    )
    assert (whole.total_steps, early.total_steps) == (1000, 100)

    def at(made: ScheduledOptimizer, step: int) -> tuple[float, float]:
        return made.learning_rate(step), made._decay(step)

    assert [at(early, step) for step in (0, 50, 99)] == [at(whole, step) for step in (0, 50, 99)]
    before = at(whole, 50)
    for made in (whole, early):
        made.total_steps *= 3
        assert at(made, 150) == before
        assert made.step_of(50) == 150
