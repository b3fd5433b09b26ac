"""Networks that a configuration may build, and those that it may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft
import timm
import torch

from hexa.config import UserError
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig

#: Parameters of timm's functions that are not the network's.
OTHERS = """checkpoint_path pretrained pretrained_cfg pretrained_cfg_overlay pretrained_strict cache_dir features_only
scriptable exportable no_jit num_classes in_chans kwargs_filter model_cfg pruned out_indices device dtype block_args
file url self"""


def test_resnet_initialisation() -> None:
    """No batch-norm of a ResNet begins with weights of 0."""
    network = backbones.build(NetworkConfig(name="resnet18"))
    assert all((p == 1).all() for name, p in network.named_parameters() if "bn2.weight" in name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_timm_option_filter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only parameters of the network class reach timm."""
    made: list[dict[str, Any]] = []
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *a, **options: made.append(options) or create(*a, **options)
    )
    with pytest.raises(UserError, match=f"network\\.options: resnet18 has no '{name}'"):
        backbones.build(NetworkConfig(name="resnet18", options={name: "1"}))
    assert not any(name in options for options in made if name != "num_classes")


@pytest.mark.parametrize(
    "value", ["/etc/passwd", "hf-hub:a", "http://x", "..", "a b", "", "x" * 50]
)
def test_option_place_values(value: str) -> None:
    """No option can be a path or an address."""
    with pytest.raises(UserError, match=r"network\.options: stem_type must be a name or a number"):
        backbones.build(NetworkConfig(name="resnet18", options={"stem_type": value}))


@pytest.mark.parametrize(
    "name",
    ["hf-hub:timm/resnet18", "hf_hub:a/b", "local-dir:/tmp", "./resnet18", "resnet18.a1_in1k"],
)
def test_network_place_names(name: str) -> None:
    """No network name can be a path or an address."""
    with pytest.raises(UserError, match="unknown network"):
        backbones.build(NetworkConfig(name=name))


def test_network_options() -> None:
    options = {
        "img_size": 32,
        "patch_size": 4,
        "drop_path_rate": 0.1,
        "class_token": False,
        "global_pool": "avg",
    }
    network = backbones.build(NetworkConfig(name="vit_tiny_patch16_224", options=options))
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 192)
    backbones.build(NetworkConfig(name="tf_efficientnet_lite0", options={"bn_momentum": 0.1}))
    with pytest.raises(UserError, match="cannot be built with these"):
        backbones.build(NetworkConfig(name="resnet18", options={"act_layer": "no_such_layer"}))


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_cosine_stem(channels: int) -> None:
    shape = (channels, 3, 3)
    waves = scipy.fft.idctn(np.eye(9 * channels).reshape(-1, *shape), axes=(1, 2, 3), norm="ortho")
    waves = waves[np.argsort(np.indices(shape).sum(0).ravel(), kind="stable")]
    for most, count in ((1, 1), (2, 2), (11, 10), (100, 18 * channels)):
        expected = np.concatenate([waves[: max(1, most // 2)], -waves[: most // 2]])
        found = (
            backbones.SmallResNet((most, 4), channels=channels, stem="cosine")
            .conv1.weight[:count]
            .detach()
        )
        np.testing.assert_allclose(found, expected[:most], atol=1e-6)
