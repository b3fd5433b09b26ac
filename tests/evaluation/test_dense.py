"""Dense features: the maps of the network's own pass, image by image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from hexa.data import open_source
from hexa.evaluation.embed import embed
from hexa.nn.backbones import NetworkConfig
from hexa.nn.feature_maps import last_maps
from hexa.weights.external import External
from hexa.weights.pretrained import random_backbone
from tests.conftest import Says
from tests.evaluation.given import QUIET, SMALL
from tests.refusals import one_line

VIT = NetworkConfig(
    name="vit_tiny_patch16_224",
    options={"img_size": 32, "patch_size": 8, "depth": 2, "dynamic_img_size": True},
)


def test_dense_maps_labels_paths(tmp_path: Path) -> None:
    """Maps, labels and paths belong together."""
    backbone = random_backbone(SMALL, 8)
    source = open_source("digits", "test")
    pixels = torch.stack([source.decode(number) for number in range(len(source))]) / 255
    with torch.no_grad():
        expected = backbone.network.forward_features(backbone.normalize(pixels))  # type: ignore[operator]
    made = embed(backbone, "digits#test", tmp_path / "m.npz", dense=True, batch_size=100, **QUIET)
    assert made.num_images == 450
    assert made.shape == (8, 4, 4)
    found = np.load(made.path)
    np.testing.assert_allclose(found["features"], expected, rtol=1e-4, atol=1e-5)
    assert found["features"].dtype == np.float32
    assert found["labels"].tolist() == source.labels.tolist()
    assert found["paths"].tolist() == source.paths


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("swin_tiny_patch4_window7_224", {}, 224),
        ("deit_tiny_distilled_patch16_224", {}, 224),
        (VIT.name, VIT.options, 48),
    ],
)
def test_timm_map_layout(name: str, options: dict[str, Any], size: int) -> None:
    """Maps come as channels, rows and columns."""
    network = timm.create_model(name, num_classes=0, **options).eval()
    images = torch.rand(1, 3, size, size)
    found = last_maps(network, name, (size, size))
    with torch.no_grad():
        theirs = network.forward_intermediates(
            images, indices=1, norm=True, intermediates_only=True
        )
        ours = found(images)
    assert ours.shape == theirs[-1].shape
    torch.testing.assert_close(ours, theirs[-1])


def test_torchvision_network_maps() -> None:
    """A network without the function of timm is taken apart."""
    import torchvision

    network = torchvision.models.resnet18(weights=None).train()
    found = last_maps(External(network, "it"), "it", (64, 96))
    network.train()
    last_maps(network, "it", (64, 64))
    assert network.training
    assert int(network.bn1.num_batches_tracked) == 0
    with torch.no_grad():
        assert found(torch.rand(2, 3, 64, 64)).shape == (2, 512, 2, 2)


@pytest.mark.parametrize(
    "network",
    [
        nn.Flatten,
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: timm.create_model("resmlp_12_224"),
    ],
)
def test_network_without_maps(network: Callable[[], nn.Module]) -> None:
    with one_line(r"^it: has no feature maps .*; give a convolutional network"):
        last_maps(network(), "it", (64, 64))


def test_dense_command_output(tmp_path: Path, says: Says) -> None:
    """The command says what it wrote."""

    def embedding(words: str, status: int = 0) -> Any:
        given = words.replace("OUT", str(tmp_path / "maps"))
        return says(f"embed {given} --data digits#test", status=status)

    told = embedding("random:small-resnet-4-8 --out OUT.npz --dense --size 16 --precision fp32").out
    assert "450 × 8 × 8 × 8 dense features" in " ".join(told.split())
    assert ".npz" in embedding("pixels:8 --out OUT.parquet --dense", status=2).err
