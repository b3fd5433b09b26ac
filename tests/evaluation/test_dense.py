"""Dense features: the maps of the network's own pass, image by image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from hexa.data import open_source
from hexa.evaluation.embed import embed
from hexa.evaluation.features import transform_of
from hexa.nn.backbones import NetworkConfig
from hexa.nn.feature_maps import last_maps
from hexa.weights.external import External
from hexa.weights.pretrained import Backbone, random_backbone
from tests.conftest import Says
from tests.evaluation.given import QUIET, SMALL, noise_images
from tests.refusals import one_line

VIT = NetworkConfig(
    name="vit_tiny_patch16_224",
    options={"img_size": 32, "patch_size": 8, "depth": 2, "dynamic_img_size": True},
)


def naive(backbone: Backbone, data: str) -> np.ndarray:
    """One image after the other through the network's own function."""
    source = open_source(data)
    transform = transform_of(backbone)
    found = []
    for index in range(len(source)):
        pixels = backbone.normalize(transform(source.decode(index))[None] / 255)
        with torch.no_grad():
            found.append(backbone.network.forward_features(pixels)[0])  # type: ignore[operator]
    return torch.stack(found).numpy()


def test_dense_maps_labels_paths(tmp_path: Path) -> None:
    """Maps, labels and paths belong together."""
    backbone = random_backbone(SMALL, 8)
    source = open_source("digits", "test")
    made = embed(backbone, "digits#test", tmp_path / "m.npz", dense=True, batch_size=100, **QUIET)
    assert made.num_images == 450
    assert made.shape == (8, 4, 4)
    found = np.load(made.path)
    np.testing.assert_allclose(
        found["features"], naive(backbone, "digits#test"), rtol=1e-4, atol=1e-5
    )
    assert found["features"].dtype == np.float32
    assert found["labels"].tolist() == source.labels.tolist()
    assert found["paths"].tolist() == source.paths
    embed(backbone, "digits#test", tmp_path / "f.npz", **QUIET)
    features = np.load(tmp_path / "f.npz")["features"]
    np.testing.assert_allclose(found["features"].mean((2, 3)), features, rtol=1e-4, atol=1e-5)


def test_vit_token_grid(tmp_path: Path) -> None:
    """Tokens lie on the grid of their patches."""
    data = noise_images(
        tmp_path / "images", {"0.png": (40, 30), "1.png": (32, 32), "2.png": (50, 60)}
    )
    backbone = random_backbone(VIT, 32).prepared(size=48)
    made = embed(backbone, data, tmp_path / "m.npz", dense=True, num_workers=0, **QUIET)
    found = np.load(made.path)["features"]
    grid = 48 // 8
    assert found.shape == (3, 192, grid, grid)
    tokens = naive(backbone, data)[:, 1:]  # [3, h·w, 192], after the class token
    for row in range(grid):
        for column in range(grid):
            np.testing.assert_allclose(
                found[:, :, row, column], tokens[:, row * grid + column], rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize(
    "name", ["swin_tiny_patch4_window7_224", "deit_tiny_distilled_patch16_224"]
)
def test_timm_map_layout(name: str) -> None:
    """Maps come as channels, rows and columns."""
    network = timm.create_model(name, num_classes=0).eval()
    images = torch.rand(1, 3, 224, 224)
    found = last_maps(network, name, (224, 224))
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
        nn.Flatten(),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        timm.create_model("resmlp_12_224"),
    ],
)
def test_network_without_maps(network: nn.Module) -> None:
    with one_line(r"^it: has no feature maps .*; give a convolutional network"):
        last_maps(network, "it", (64, 64))


def test_dense_unreadable_image(tmp_path: Path) -> None:
    """An unreadable image is left out."""
    data = noise_images(tmp_path / "images", {f"{number}.png": (8, 8) for number in range(3)})
    (tmp_path / "images" / "1.png").write_bytes(b"broken")
    made = embed(random_backbone(SMALL, 8), data, tmp_path / "m.npz", dense=True, num_workers=0)
    assert made.num_images == 2
    assert len(made.left_out) == 1
    assert np.load(made.path)["paths"].tolist() == ["0.png", "2.png"]


def test_dense_command_output(tmp_path: Path, says: Says) -> None:
    """The command says what it wrote."""

    def embedding(words: str, status: int = 0) -> Any:
        given = words.replace("OUT", str(tmp_path / "maps"))
        return says(f"embed {given} --data digits#test", status=status)

    told = embedding("random:small-resnet-4-8 --out OUT.npz --dense --size 16 --precision fp32").out
    assert "450 × 8 × 8 × 8 dense features" in " ".join(told.split())
    for words, problem in (
        ("pixels:8 --out OUT.npz --dense", "pixels:8: has no feature maps"),
        ("random:small-resnet-4-8 --out OUT.parquet --dense", ".npz"),
    ):
        assert problem in " ".join(embedding(words, status=2).err.split())
