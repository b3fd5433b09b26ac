"""Branch batch-norm against torch's own, one set at a time and group by group."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from hexa.core import Branch
from hexa.nn import branch_norm, norm_functions
from hexa.nn.branch_norm import convert, use_branch
from hexa.weights.fitting import own_branch
from tests.modules import unchanged


def images(count: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        count, 3, 5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
    "every other column": lambda x: x[..., ::2],
}


def seeded_norm() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3).double()
    torch.manual_seed(0)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("branch", ["main", "aux"])
def test_single_branch_batch_norm(branch: str) -> None:
    """One branch equals a plain batch norm."""
    plain = seeded_norm()
    ours = convert(nn.Sequential(copy.deepcopy(plain)))
    with use_branch(ours, Branch(branch)):
        torch.testing.assert_close(ours(images()), plain(images()))
    chosen = ours[0] if branch == "main" else ours[0].aux
    torch.testing.assert_close(chosen.running_mean, plain.running_mean)
    torch.testing.assert_close(chosen.running_var, plain.running_var)
    assert int(chosen.num_batches_tracked) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("count", "groups"),
    [
        (12, 4),
        (13, 4),
        (12, 1),
        (4, 8),
    ],
)
def test_batch_norm_groups(count: int, groups: int, layout: str) -> None:
    """F5: batch statistics per group, running statistics follow the mean over groups, same
    gradients."""
    plain = seeded_norm()
    ours = convert(nn.Sequential(copy.deepcopy(plain)), groups=groups)
    x = LAYOUTS[layout](images(count)).requires_grad_()
    weights = torch.randn_like(x)
    norms = []
    outputs = []
    for part in x.tensor_split(min(groups, count // 2)):
        norm = copy.deepcopy(plain)
        norm.weight = plain.weight
        norm.bias = plain.bias
        outputs.append(norm(part))
        norms.append(norm)
    theirs = torch.cat(outputs)
    result = ours(x)
    torch.testing.assert_close(result, theirs)
    a = torch.autograd.grad((result * weights).sum(), [x, ours[0].weight, ours[0].bias])
    expected = torch.autograd.grad((theirs * weights).sum(), [x, plain.weight, plain.bias])
    torch.testing.assert_close(a, expected)
    for name in ("running_mean", "running_var"):
        found = getattr(ours[0], name)
        torch.testing.assert_close(
            found, torch.stack([getattr(norm, name) for norm in norms]).mean(0)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("frozen", [False, True])
def test_parallel_batch_norm_groups(layout: str, dtype: torch.dtype, frozen: bool) -> None:
    """The GPU's code path; the next layer may change the output in place."""
    plain = seeded_norm().to(torch.promote_types(dtype, torch.float32)).requires_grad_(not frozen)
    for x in (LAYOUTS[layout](images(12)), images(12)[..., 0, 0]):
        made = []
        for together in (False, True):
            given = x.to(dtype).requires_grad_()
            y, *statistics = norm_functions.GroupedNorm.apply(
                given, plain.weight, plain.bias, [3] * 4, 1e-5, together
            )
            parts = [given] if frozen else [given, plain.weight, plain.bias]
            made.append(
                [
                    y.detach().clone(),
                    *statistics,
                    *torch.autograd.grad(y.relu_().square().sum(), parts),
                ]
            )
            for found in (y, made[-1][3]) if layout == "channels last" and x.ndim == 4 else ():
                assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(*made)


@pytest.mark.parametrize("known", [False, True])
def test_fixed_norm_gradients(known: bool) -> None:
    """As on a GPU: torch's output and gradients, with a scale that is computed before or on the way."""
    plain = seeded_norm().eval()
    plain.running_mean.normal_()
    plain.running_var.uniform_(0.5, 2)
    x = LAYOUTS["channels last"](images()).requires_grad_()
    scale = plain.weight.detach() * (plain.running_var + plain.eps).rsqrt() if known else None
    given = x, plain.running_mean, plain.running_var, plain.weight, plain.bias, plain.eps, scale
    found = norm_functions.FixedNorm.apply(*given)
    weights = torch.randn_like(x)
    parts = [x, plain.weight, plain.bias]
    made = list(torch.autograd.grad((found * weights).sum(), parts))
    torch.testing.assert_close(made, list(torch.autograd.grad((plain(x) * weights).sum(), parts)))
    assert made[0].is_contiguous(memory_format=torch.channels_last)


def test_scales_of_kept_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass computes them for all batch-norms at once, in each branch."""
    ours = convert(nn.Sequential(seeded_norm(), seeded_norm()))
    branch_norm.keep_statistics(ours)
    ours[1].aux.running_var.fill_(3.0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    with use_branch(ours, Branch("aux")):
        scale = ours[1]._scale
        assert ours[0]._scale is not None
    aux = ours[1].aux
    torch.testing.assert_close(scale, aux.weight.detach() / (3 + aux.eps) ** 0.5)
    assert ours[1]._scale is None


def test_statistics_twice_in_a_pass() -> None:
    """A batch-norm that a pass uses twice follows twice, in turn."""
    twice = convert(nn.Sequential(seeded_norm()), groups=3)
    single = copy.deepcopy(twice)
    with use_branch(twice):
        for seed in range(2):
            twice(images(seed=seed))
    for seed in range(2):
        single(images(seed=seed))
    for name, value in single.state_dict().items():
        assert torch.equal(value, twice.state_dict()[name])


@pytest.mark.parametrize("groups", [1, 3])
def test_frozen_and_eval_passes(groups: int) -> None:
    """Frozen passes change no statistics, and eval passes use running statistics."""
    ours = convert(nn.Sequential(seeded_norm()), groups=groups)
    with unchanged(ours), use_branch(ours, Branch("aux", update=False)):
        trained = ours(images())
    with unchanged(ours), use_branch(ours, Branch("aux", training=False)):
        frozen = ours(images())
    torch.testing.assert_close(frozen, seeded_norm().eval()(images()))
    assert not torch.allclose(trained, frozen)


@pytest.mark.parametrize(
    "name", ["resnet18", "efficientnet_b0", "regnety_002", "mobilenetv3_small_050"]
)
def test_timm_network_conversion(name: str) -> None:
    """Outputs and key names do not change, in train and eval mode, for all modules fused with the
    normalisation."""
    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=0, drop_rate=0.0).double()
    ours = convert(copy.deepcopy(plain), groups=1)
    x = torch.rand(4, 3, 64, 64, dtype=torch.float64)
    for train in (True, False):
        found = ours.train(train)(x)
        expected = plain.train(train)(x)
        torch.testing.assert_close(found, expected)
    assert not any(
        isinstance(m, nn.BatchNorm2d) and not n.endswith("aux") for n, m in ours.named_modules()
    )
    found = own_branch(ours.state_dict(), plain.state_dict())
    assert found.keys() == plain.state_dict().keys()
    plain.load_state_dict(found)
