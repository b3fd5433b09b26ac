"""Optimizers against their own definitions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hexa.training.muon import orthogonalised
from hexa.training.optimizers import OptimizerConfig, ScheduledOptimizer, build, clip_each_gradient
from hexa.training.schedules import ScheduleConfig


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_formula(nesterov: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    untouched = nn.Parameter(torch.ones(2, dtype=torch.float64))
    config = OptimizerConfig(learning_rate=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    optimizer = build([parameter, frozen, untouched], config, batch_size=64)
    theta = parameter.detach().clone()
    velocity = torch.zeros(5, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(5, generator=generator, dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        decayed = gradient + 0.01 * theta
        velocity = 0.9 * velocity + decayed
        ahead = decayed + 0.9 * velocity
        theta = theta - 0.1 * (ahead if nesterov else velocity)
    torch.testing.assert_close(parameter.detach(), theta, rtol=1e-12, atol=1e-12)
    # a parameter without gradient is left alone, not decayed
    assert torch.equal(untouched, torch.ones(2, dtype=torch.float64))


def test_batch_scaled_rate() -> None:
    """The rate scales with the batch."""
    cases = (
        (None, 512, 0.03),
        (256, 512, 0.06),
        (256, 128, 0.015),
    )
    for base, batch, rate in cases:
        config = OptimizerConfig(learning_rate=0.03, base_batch_size=base)
        optimizer = build([nn.Parameter(torch.zeros(1))], config, batch)
        assert optimizer.defaults["lr"] == optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_nesterov_momentum() -> None:
    """Nesterov needs momentum."""
    with pytest.raises(ValueError, match="momentum above 0"):
        OptimizerConfig(nesterov=True, momentum=0.0)


def test_larc_formula() -> None:
    """F10, F11 on a weight and a bias that starts at zero; weight decay 1e-2 so that it shows."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 4, generator=generator, dtype=torch.float64))
    bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    config = OptimizerConfig(name="larc", learning_rate=0.5, momentum=0.9, weight_decay=1e-2)
    optimizer = build([weight, bias], config, batch_size=64)
    theta = {p: p.detach().clone() for p in (weight, bias)}
    velocity = {p: torch.zeros_like(p) for p in (weight, bias)}
    for _ in range(3):
        for p in (weight, bias):
            gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = gradient.clone()
            size = theta[p].norm()
            slope = gradient.norm()
            if size > 0 and slope > 0:
                local_rate = 0.001 * size / (slope + 1e-2 * size + 1e-8)
                gradient = local_rate * (gradient + 1e-2 * theta[p])
            velocity[p] = 0.9 * velocity[p] + gradient
            theta[p] = theta[p] - 0.5 * velocity[p]
        optimizer.step()
        for p in (weight, bias):
            torch.testing.assert_close(p.detach(), theta[p], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 2, 3, 3), (20, 2, 3, 3)])
def test_muon_formula(shape: tuple[int, ...]) -> None:
    """Against singular vectors: singular values end near 1; a step has the given angle and keeps
    the norm."""
    generator = torch.Generator().manual_seed(0)
    kernel = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    weight = nn.Parameter(torch.randn((4, 3), generator=generator, dtype=torch.float64))
    plain = nn.Parameter(torch.randn((4, 3), generator=generator, dtype=torch.float64))
    plain.data.copy_(weight)
    muon = OptimizerConfig(name="muon", learning_rate=0.05, other_rate=0.1, weight_decay=0.01)
    optimizer = build([kernel, weight], muon, 64)
    sgd = build([plain], OptimizerConfig(learning_rate=0.1, weight_decay=0.01), 64)
    assert sorted(group.get("rate", 1.0) for group in optimizer.param_groups) == [1.0, 2.0]
    velocity = torch.zeros(shape, dtype=torch.float64)
    for _ in range(3):
        before = kernel.detach().clone()
        for p in (kernel, weight):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        plain.grad = weight.grad.clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * group.get("rate", 1.0)  # as the schedule sets it
        velocity = 0.9 * velocity + kernel.grad
        ahead = (kernel.grad + 0.9 * velocity).flatten(1)
        left, _, right = torch.linalg.svd(ahead, full_matrices=False)
        shapes = [ahead[:, 1:], ahead.mT, ahead]
        made = orthogonalised(shapes, together=True)[-1]
        alone = orthogonalised(shapes, together=False)[-1]
        torch.testing.assert_close(made, alone, rtol=1e-12, atol=1e-12)
        found = torch.linalg.svd(made)
        assert 0.3 < float(found.S.min()) <= float(found.S.max()) < 1.3
        # the singular vectors are kept: in their coordinates it is diagonal
        diagonal = left.T @ made @ right.T
        torch.testing.assert_close(diagonal, diagonal.diagonal().diag(), rtol=0, atol=1e-8)
        optimizer.step()
        sgd.step()
        torch.testing.assert_close(weight, plain, rtol=1e-12, atol=1e-12)
        direction = (made / made.norm()).view(shape)
        moved = before - 0.05 * before.norm() * direction
        expected = moved * before.norm() / moved.norm()
        torch.testing.assert_close(kernel.detach(), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(kernel.norm(), before.norm(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_undecayed_norms_and_biases(decay: float) -> None:
    """F6: neither decayed nor scaled, against the update written out."""
    weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    bias = nn.Parameter(torch.tensor([2.0]))
    config = OptimizerConfig(name="lars", learning_rate=0.5, momentum=0.0, weight_decay=decay)
    optimizer = build([weight, bias], config, 1)
    found = [(one["decayed"], one["weight_decay"]) for one in optimizer.param_groups]
    expected = [
        (True, decay),
        (False, 0),
    ]
    assert found == expected
    weight.grad = torch.tensor([[0.0, 2.0]])
    bias.grad = torch.tensor([1.0])
    optimizer.step()
    rate = 0.5 * 0.001 * 5 / (2 + decay * 5 + 1e-8)
    first = 3 - rate * decay * 3
    second = 4 - rate * (2 + decay * 4)
    torch.testing.assert_close(weight.detach(), torch.tensor([[first, second]]))
    torch.testing.assert_close(bias.detach(), torch.tensor([1.5]))
    adamw = OptimizerConfig(name="adamw", weight_decay=decay)
    groups = build([weight, bias], adamw, 1).param_groups
    decays = sorted(group["weight_decay"] for group in groups)
    assert decays == [0.0, decay]


def test_weight_decay_schedule() -> None:
    """Weight decay follows half a cosine."""
    config = OptimizerConfig(weight_decay=0.04, final_weight_decay=0.4)
    found = [config.weight_decay_at(share) for share in (0, 0.5, 1)]
    assert found == pytest.approx([0.04, 0.22, 0.4])
    assert OptimizerConfig(weight_decay=0.04).weight_decay_at(0.7) == 0.04


def test_planned_schedules() -> None:
    """A run that ends early follows the schedules of all epochs; a longer one stretches them."""
    weight = nn.Parameter(torch.ones(2, 2))
    config = OptimizerConfig(name="adamw", weight_decay=0.04, final_weight_decay=0.4)
    made = [
        ScheduledOptimizer(build([weight], config, 1), config, ScheduleConfig(), 100, 10, most)
        for most in (None, 100)
    ]
    assert [one.total_steps for one in made] == [1000, 100]
    for step in (0, 50, 99):
        assert made[0]._decay(step) == made[1]._decay(step)
    expected = [(one.learning_rate(50), one._decay(50)) for one in made]
    for one in made:
        one.total_steps *= 3
    assert [(one.learning_rate(150), one._decay(150)) for one in made] == expected
    assert [one.step_of(50) for one in made] == [150, 150]


def test_per_parameter_clipping() -> None:
    """Each gradient is clipped on its own."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[0].grad = torch.tensor([3.0, 4.0])
    parameters[1].grad = torch.tensor([0.3, 0.4])
    clip_each_gradient(parameters, 1.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.3, 0.4]))
    assert parameters[2].grad is None


def test_muon_other_rate() -> None:
    """The other rate scales like the learning rate, and does not unfreeze parameters."""
    kernel = nn.Parameter(torch.ones(2, 2, 3, 3))
    weight = nn.Parameter(torch.ones(2))
    config = OptimizerConfig(name="muon", learning_rate=0.02, other_rate=0.08, base_batch_size=256)
    optimizer = build([kernel, weight], config, 128)
    constant = ScheduleConfig(kind="constant")
    scheduled = ScheduledOptimizer(optimizer, config, constant, 2, 3)
    weight.requires_grad_(False)
    scheduled.thaw(0)
    assert not weight.requires_grad
    kernel.grad = torch.ones_like(kernel)
    scheduled.step(0)
    rates = {
        len(group["params"][0].shape): group["lr"] for group in scheduled.optimizer.param_groups
    }
    expected = {4: pytest.approx(0.01), 1: pytest.approx(0.04)}
    assert rates == expected
    with pytest.raises(ValueError, match="nesterov is for sgd, larc and lars"):
        OptimizerConfig(name="muon", nesterov=True)
