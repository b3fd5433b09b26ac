"""timm's own weights where there is no network: an answer at once, or what is stored here."""

from __future__ import annotations

import threading
import time
from email.message import Message
from pathlib import Path
from unittest.mock import Mock
from urllib.error import HTTPError

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


def test_without_a_network_the_answer_comes_at_once(
    unreachable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_timm_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "create_model", Mock(side_effect=OSError("no route\nto host")))
    monkeypatch.setattr(timm_weights, "_answers", lambda address: True)
    with pytest.raises(UserError, match=r"its weights .*\(no route to host\).*random:resnet18"):
        load_backbone("timm:resnet18")


def test_a_name_that_is_looked_up_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()

    def look_up(*given: object, **options: object) -> None:
        waiting.wait(60)
        raise OSError

    monkeypatch.setattr(timm_weights, "PATIENCE", -0.9)
    monkeypatch.setattr("urllib.request.urlopen", look_up)
    assert not timm_weights._answers("http://somewhere")
    waiting.set()


def test_stored_weights_need_no_network(
    unreachable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_whatever_a_server_says_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    assert not timm_weights._answers(NOWHERE)
    for said in (
        HTTPError(NOWHERE, 404, "Not Found", Message(), None),
        OSError("SSL: CERTIFICATE_VERIFY_FAILED"),
    ):
        monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=said))
        assert timm_weights._answers(NOWHERE)


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert timm_weights._answers(NOWHERE)


def test_names_that_timm_has_changed(unreachable: None, tmp_path: Path) -> None:
    before, after = "vit_tiny_patch16_224_in21k", "vit_tiny_patch16_224.augreg_in21k"
    assert timm_weights.current(before) == after
    assert timm_weights.current("resnet18") == "resnet18"
    found, expected = load_backbone(f"random:{before}"), load_backbone(f"random:{after}")
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
