"""Vision transformers at other image sizes, compared with timm's own networks of that size."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.image_size import at_size
from tests.refusals import one_line

SMALL = {"depth": 2, "embed_dim": 24, "num_heads": 2}
#: Narrow networks: (timm name, options, size of the weights, other size).
NETWORKS: list[tuple[str, dict[str, Any], int, int]] = [
    ("vit_tiny_patch16_224", SMALL, 224, 64),  # class token
    ("vit_small_patch14_reg4_dinov2", SMALL, 518, 56),  # registers; tokens without positions
    ("vit_base_patch16_siglip_224", SMALL, 224, 48),  # pooled by attention, no token
    ("eva02_tiny_patch14_224", SMALL, 224, 56),  # rotary and absolute positions
    ("vit_small_patch16_dinov3", SMALL, 256, 64),  # rotary positions
    ("beit_base_patch16_224", SMALL, 224, 64),  # biases of relative positions
    ("swin_tiny_patch4_window7_224", {"embed_dim": 24}, 224, 96),  # windows
    ("swinv2_tiny_window8_256", {"embed_dim": 24}, 256, 288),
    ("test_maxvit", {}, 160, 96),
]


def drawn(name: str, options: dict[str, Any]) -> nn.Module:
    """Return a network with noise on all parameters, because some are zero at initialisation."""
    torch.manual_seed(0)
    network = backbones.build(NetworkConfig(name=name, options=options)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return network


def by_timm(
    name: str,
    options: dict[str, Any],
    state: dict[str, Tensor],
    size: int,
) -> nn.Module:
    """timm's network of this size, filled through timm's own filter of checkpoints."""
    network = timm.create_model(name, num_classes=0, img_size=size, **options).eval()
    convert = sys.modules[type(network).__module__].checkpoint_filter_fn
    head = {"head.fc.weight": torch.zeros(1)}  # by which the filter of Swin knows timm's names
    made = convert(state | head, network)
    made = {key: value for key, value in made.items() if not key.startswith("head.")}
    # masks and tables of positions depend on the size
    buffers = {name: value for name, value in network.named_buffers() if name in made}
    network.load_state_dict(made | buffers, strict=False)
    missing = {key for key, _ in network.named_parameters()} - made.keys()
    assert not missing
    return network


@pytest.mark.parametrize(("name", "options", "native", "size"), NETWORKS)
def test_vit_size_features(name: str, options: dict[str, Any], native: int, size: int) -> None:
    """Features at another size are those of timm."""
    network = drawn(name, options)
    config = NetworkConfig(name=name, options=options)
    sized = at_size(network, config, size)
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = by_timm(name, options, network.state_dict(), size)(images)
        found = sized.network(images)
    assert sized.num_features == expected.shape[1]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    again = backbones.build(sized.config)  # as from a file
    again.load_state_dict(sized.network.state_dict(), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(images), expected, rtol=1e-6, atol=1e-6)
    same = at_size(network, config, native)
    assert same.network is network
    assert same.config == config


def test_vit_size_between_patches() -> None:
    """A size between patches stays if the network was made for it."""
    config = NetworkConfig(name="vit_so400m_patch14_siglip_384", options=SMALL)
    network = drawn(config.name, SMALL)
    assert at_size(network, config, 384).network is network
    with one_line("size 385: .* 14 .* 378 .* 392"):
        at_size(network, config, 385)
