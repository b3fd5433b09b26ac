"""timm's weights without a network connection: an immediate error, or the cached file."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants

from hexa.config import UserError
from hexa.weights import timm_weights
from hexa.weights.pretrained import load_backbone

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_timm_weights_offline(unreachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network connection the error is immediate."""
    monkeypatch.setattr(
        timm, "create_model", Mock(side_effect=AssertionError("timm would ask again and again"))
    )
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *given, **options: None)
    begin = time.monotonic()
    with pytest.raises(
        UserError, match=r"not cached here and cannot be downloaded \(no answer from http://127"
    ) as caught:
        load_backbone("timm:resnet18")
    assert time.monotonic() - begin < 40
    assert "FILE#resnet18" in str(caught.value)


def test_cached_timm_weights(
    unreachable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached weights need no network connection."""
    torch.manual_seed(3)
    network = timm.create_model("test_resnet")
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *given, **options: str(path)
    )
    found = load_backbone("timm:test_resnet.r160_in1k")
    assert torch.equal(found.network.conv1[0].weight, network.conv1[0].weight)
    assert found.preparation.origins["mean"] == "timm's configuration of test_resnet.r160_in1k"


def test_renamed_timm_names(unreachable: None, tmp_path: Path) -> None:
    before = "vit_tiny_patch16_224_in21k"
    after = "vit_tiny_patch16_224.augreg_in21k"
    assert timm_weights.current(before) == after
    assert timm_weights.current("resnet18") == "resnet18"
    found = load_backbone(f"random:{before}")
    expected = load_backbone(f"random:{after}")
    assert found.network_config.name == "vit_tiny_patch16_224"
    assert found.preparation == expected.preparation
    assert found.content_hash() == expected.content_hash()
    torch.save(found.network.state_dict(), tmp_path / "x.pth")
    loaded = load_backbone(f"{tmp_path / 'x.pth'}#{before}")
    assert loaded.content_hash() == expected.content_hash()
    assert loaded.preparation == expected.preparation
    with pytest.raises(
        UserError, match=r"timm:convnext_tiny\.fb_in22k: its weights are not cached"
    ):
        load_backbone("timm:convnext_tiny_in22k")
