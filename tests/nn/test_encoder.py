"""Several crops through one encoder: one backbone pass per size, one head pass for all (F8)."""

from __future__ import annotations

import copy

import pytest
import torch

from hexa.core import MAIN, Setting
from hexa.nn.backbones import NetworkConfig, build
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder, normalized_head


def encoder(groups: int = 1) -> Encoder:
    torch.manual_seed(0)
    network = build(NetworkConfig(name="small-resnet", widths=(4, 8)))
    setting = Setting(8, 4, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    return Encoder.branched(network, normalized_head(8, 10, 6), setting, groups).double()


def crops(batch: int, *sizes: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.rand(batch, 3, size, size, generator=generator, dtype=torch.float64) for size in sizes
    )


def test_multi_crop_passes() -> None:
    """One backbone pass a size and one head pass, in crop-major order."""
    made = encoder()
    views = crops(4, 12, 12, 8, 8, 8)
    seen: list[torch.Size] = []
    made.backbone.register_forward_hook(lambda _m, args, _o: seen.append(args[0].shape))
    found = made.multi_crop(views)
    assert [tuple(shape) for shape in seen] == [(8, 3, 12, 12), (12, 3, 8, 8)]
    twin = encoder()
    rows = []
    for part in (views[:2], views[2:]):
        pixels = twin.normalize(torch.cat(part))
        rows.append(twin.backbone(pixels))
    expected = twin.head(torch.cat(rows)).view(5, 4, 6)
    torch.testing.assert_close(found, expected)
    lengths = encoder().embed(views, MAIN).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(5, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("batch", "groups"),
    [
        (8, 2),
        (9, 2),
        (10, 4),
        (7, 3),
        (5, 4),
        (3, 4),
        (1, 2),
    ],
)
def test_multi_crop_groups(batch: int, groups: int) -> None:
    """Uneven division is included: the first runs have one more image (tensor_split)."""
    views = crops(batch, 12, 12, 8, 8, 8)
    made = encoder(groups)
    with use_branch(made, images=batch):
        together = made.multi_crop(views)
    runs = min(groups, batch)
    alone = []
    apart = []
    for run in range(runs):
        part = tuple(view.tensor_split(runs)[run] for view in views)
        one = encoder()
        alone.append(dict(one.named_buffers()))
        apart.append(one.multi_crop(part))
    torch.testing.assert_close(together, torch.cat(apart, 1))
    for name, value in made.named_buffers():
        if "running" in name and "aux" not in name:
            each = torch.stack([buffers[name] for buffers in alone])
            torch.testing.assert_close(value, each.mean(0))


@pytest.mark.parametrize("groups", [1, 2])
def test_compiled_multi_crop(groups: int) -> None:
    """One graph without a break, which leaves output and running statistics as they are uncompiled."""
    plain = encoder(groups)
    compiled = copy.deepcopy(plain)
    torch._dynamo.reset()
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        seen.append(len(graph.graph.nodes))
        return graph.forward

    compiled.compile(backend=backend, fullgraph=True)
    views = crops(4, 12, 12, 8)
    made = []
    for one in (plain, compiled):
        with use_branch(one, MAIN, 4):
            made.append(one.multi_crop(views))
        made[-1].square().sum().backward()
    assert torch.equal(*made)
    assert len(seen) == 1
    for name, value in plain.state_dict().items():
        assert torch.equal(value, compiled.state_dict()[name])
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
