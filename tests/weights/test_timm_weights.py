"""timm's weights without a network connection: an immediate error, or the cached file."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants

from hexa.config import UserError
from hexa.weights import timm_weights
from hexa.weights.preparation import current_name
from hexa.weights.pretrained import load_backbone

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub does not answer, and its cache is empty."""
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_timm_weights_offline(unreachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the hub is asked once, and only its cache is read."""
    asked = Mock(return_value=False)
    monkeypatch.setattr(timm_weights, "_answers", asked)
    with pytest.raises(
        UserError, match=r"not cached here and cannot be downloaded \(no answer from http://127"
    ) as caught:
        load_backbone("timm:resnet18")
    assert asked.call_count == 1
    assert "FILE#resnet18" in str(caught.value)
    assert constants.HF_HUB_OFFLINE is False


def test_unreachable_server() -> None:
    assert not timm_weights._answers(NOWHERE)


def test_cached_timm_weights(unreachable: None, tmp_path: Path) -> None:
    """Cached weights need no network connection."""
    torch.manual_seed(3)
    network = timm.create_model("test_resnet")
    home = tmp_path / "cache" / "models--timm--test_resnet.r160_in1k"
    for folder in ("refs", "snapshots/1"):
        (home / folder).mkdir(parents=True)
    (home / "refs" / "main").write_text("1")
    safetensors.torch.save_file(network.state_dict(), home / "snapshots/1/model.safetensors")
    found = load_backbone("timm:test_resnet.r160_in1k")
    assert torch.equal(found.network.conv1[0].weight, network.conv1[0].weight)
    assert found.preparation.origins["mean"] == "timm's configuration of test_resnet.r160_in1k"


def test_renamed_timm_names(unreachable: None, tmp_path: Path) -> None:
    before = "vit_tiny_patch16_224_in21k"
    after = "vit_tiny_patch16_224.augreg_in21k"
    assert current_name(before) == after
    assert current_name("resnet18") == "resnet18"
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
