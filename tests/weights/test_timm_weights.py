"""timm's own weights where there is no network: an answer at once, or what is stored here."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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


def test_without_a_network_the_answer_comes_at_once(unreachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: object, **options: object) -> None:
        raise AssertionError("timm would ask again and again")

    monkeypatch.setattr(timm, "create_model", never)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *given, **options: None)
    begin = time.monotonic()
    with pytest.raises(
        UserError, match=r"not cached here and cannot be downloaded \(no answer from http://127"
    ) as caught:
        load_backbone("timm:resnet18")
    assert time.monotonic() - begin < 40
    assert "FILE#resnet18" in str(caught.value)


def test_what_timm_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*given: object, **options: object) -> None:
        assert options["pretrained"]
        raise OSError("no route\nto host")

    monkeypatch.setattr(timm, "create_model", unreachable)
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


def test_stored_weights_need_no_network(unreachable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    network = timm.create_model("test_resnet")
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *given, **options: str(path))
    found = load_backbone("timm:test_resnet.r160_in1k")
    assert torch.equal(found.network.conv1[0].weight, network.conv1[0].weight)
    assert found.preparation.origins["mean"] == "timm's configuration of test_resnet.r160_in1k"


class Answers(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_whatever_a_server_says_it_is_there(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    assert timm_weights._answers(server)
    assert not timm_weights._answers(NOWHERE)


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert timm_weights._answers(NOWHERE)
