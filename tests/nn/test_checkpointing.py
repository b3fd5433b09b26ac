"""Checkpointed blocks: which they are, what they save, and that copies of them are independent."""

from __future__ import annotations

import copy

import pytest
import timm
import torch

from benchmarks.memory import peak_bytes
from hexa import recipes
from hexa.config import ConfigError
from hexa.nn.checkpointing import blocks, checkpoint_blocks
from hexa.recipes.experiment import override
from hexa.run.build import Machine, build_method, setting_of
from hexa.testing.laws import checkpointed_blocks_agree
from tests.distributed.together import run_together
from tests.laws.cases import Case


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 8),
        ("convnext_atto", 12),
        ("vit_tiny_patch16_224", 12),
        ("hrnet_w18_small", 23),
    ],
)
def test_blocks(name: str, count: int) -> None:
    with torch.device("meta"):
        assert len(blocks(timm.create_model(name, num_classes=0))) == count


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_timm_networks(name: str) -> None:
    """Less memory, the same gradients of weights and images; dropout drops the same again."""
    options = {"img_size": 32, "patch_size": 4, "drop_path_rate": 0.5} if "vit" in name else {}
    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=0, **options)
    thrifty = copy.deepcopy(plain)
    checkpoint_blocks(thrifty)
    found = []
    for network in (plain, thrifty):
        size = 32 if options else 128
        images = torch.rand(8, 3, size, size, generator=torch.Generator().manual_seed(1))

        def work(network: torch.nn.Module = network, images: torch.Tensor = images) -> None:
            torch.manual_seed(2)
            images.requires_grad_()
            network(images).square().mean().backward()

        peak = peak_bytes(work, torch.device("cpu"), network.state_dict().values())
        found.append((peak, [images.grad, *(p.grad for p in network.parameters())]))
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
    assert found[1][0] < found[0][0]


def test_copies() -> None:
    """A copy computes with its own weights."""
    network = timm.create_model("resnet18", num_classes=0)
    checkpoint_blocks(network)
    twin = copy.deepcopy(network).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    assert bool(twin(images).any())
    assert twin.state_dict().keys() == network.state_dict().keys()


def test_network_without_blocks() -> None:
    """It is refused in a line."""
    changes = {"network.name": "vgg11", "network.small_stem": False, "network.checkpoint": True}
    changes["network.options.mlp_ratio"] = 0.01
    experiment = override(recipes.get("digits-moco-v2"), changes | {"training.device": "cpu"})
    with pytest.raises(ConfigError) as refused:
        build_method(experiment, setting_of(experiment, 1347), Machine.of(experiment))
    assert [path for path, _ in refused.value.problems] == ["network.checkpoint"]


def in_two_processes() -> str:
    """What is wrong; SyncBN exchanges statistics in the second pass, too."""
    try:
        checkpointed_blocks_agree(Case("simclr", {"bn_groups": 1}, {"adversarial": {}}).made())
    except AssertionError as error:
        return str(error)
    return ""


def test_two_processes() -> None:
    assert run_together(2, in_two_processes) == ["", ""]
