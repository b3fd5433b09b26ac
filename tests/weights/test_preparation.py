"""Preparation of images for a backbone: its source, and a note if it is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from hexa.nn.normalize import IMAGENET_MEAN, IMAGENET_STD
from hexa.weights import layouts
from hexa.weights.preparation import NAMES, Preparation
from hexa.weights.pretrained import load_backbone, random_backbone
from tests.evaluation.given import SMALL

HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("state_dict.module.base_encoder.cls_token", "MoCo-v3"),
        ("teacher.head.last_layer.weight_v", "DINO and iBOT"),
        ("model.decoder_pos_embed", "MAE"),
        ("conv_proj.weight", "torchvision"),
    ],
)
def test_published_transformers(name: str, whose: str) -> None:
    """Files of vision transformers that name no network are prepared with ImageNet's values."""
    found = layouts.published_for({name: torch.zeros(1)})
    assert found.mean == IMAGENET_MEAN
    assert found.origins["mean"] == f"published with {whose}"


def test_efficientnet_preparation(tmp_path: Path) -> None:
    """Images for an EfficientNet are prepared with timm's values."""
    state = timm.create_model("tf_efficientnet_lite0", num_classes=0).state_dict()
    theirs = layouts.names(layouts.LAYOUTS["efficientnet_pytorch"], state)
    torch.save({theirs[name]: value for name, value in state.items()}, tmp_path / "lite.pth")
    found = load_backbone(tmp_path / "lite.pth")
    assert found.network_config.name == "tf_efficientnet_lite0"
    assert found.network_config.mean == HALF
    origins = dict.fromkeys(NAMES, "timm's configuration of tf_efficientnet_lite0.in1k")
    assert found.preparation == Preparation(HALF, HALF, 224, 0.875, "bicubic", origins)
    assert found.normalize(torch.full((1, 3, 1, 1), 0.5)).abs().max() < 1e-6


@pytest.mark.parametrize("given", ["0.5", 0.5, "[0.5, 0.5, 0.5]", HALF])
def test_user_preparation(given: object) -> None:
    """Values that a user sets are used and recorded."""
    backbone = random_backbone(SMALL, 16)
    found = backbone.prepared(mean=given, size="8")
    assert found.mean == HALF
    assert found.std == IMAGENET_STD
    assert found.image_size == 8
    assert "square images of at most 8 px are taken whole" in found.preparation.said()
    images = torch.rand(2, 3, 8, 8)
    expected = backbone.network((images - 0.5) / torch.tensor(IMAGENET_STD).view(3, 1, 1))
    torch.testing.assert_close(found(images), expected)
    assert backbone.deviations == {}
    assert backbone.mean == IMAGENET_MEAN
    assert backbone.to("meta").prepared(crop=0.5).normalize.scale.is_meta  # it stays on its device
