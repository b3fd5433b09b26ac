"""`hexa adapt` in two processes: the main one plans and compares, and the result is that of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hexa.adaptation.command import adapt
from hexa.adaptation.request import AdaptRequest
from hexa.config import UserError
from hexa.runtime import processes
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.adaptation.test_adapt import NETWORK
from tests.distributed.together import run_together

FIELDS = {
    "training.device": "cpu",
    "training.precision": "fp32",
    "training.report": False,
    "training.num_workers": 0,
}
LENGTH = {"epochs": 2, "max_steps": 4, "batch_size": 64}


def request(weights: str, **more: object) -> AdaptRequest:
    return AdaptRequest(weights, "digits", "digits#test", 600.0, fields={**FIELDS, **more})


def both(weights: str, out: str) -> None:
    main = processes.is_main()
    asked = AdaptRequest(weights, "digits", domain="moon", fields=FIELDS)
    with pytest.raises(UserError, match="unknown domain") as raised:
        adapt(asked, Path(out) / "none")
    assert raised.value.speaks == main  # type: ignore[attr-defined]


def adapted(weights: str, out: str) -> None:
    main = processes.is_main()
    record = adapt(request(weights, **LENGTH), Path(out))
    assert ("verdict" in record) == main
    assert record["plan"] == json.loads((Path(out) / "adapt.json").read_text())["plan"]


@pytest.fixture
def weights(tmp_path: Path) -> str:
    return str(save_backbone(random_backbone(NETWORK, 8, seed=5), tmp_path / "start.safetensors"))


def test_two_process_adapt(weights: str, tmp_path: Path) -> None:
    """Two processes give the result of one process."""
    adapt(request(weights, **LENGTH), tmp_path / "one")
    run_together(2, adapted, weights, str(tmp_path / "two"))
    states = [
        load_backbone(tmp_path / name / "backbone.safetensors").network.state_dict()
        for name in ("one", "two")
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-3, atol=1e-5)
    one = json.loads((tmp_path / "one" / "adapt.json").read_text())
    two = json.loads((tmp_path / "two" / "adapt.json").read_text())
    assert two["verdict"]
    assert two["kept"] == one["kept"]
    assert (tmp_path / "two" / "winner.safetensors").is_file()


def test_main_process_error(weights: str, tmp_path: Path) -> None:
    """The main process reports a mistake."""
    run_together(2, both, weights, str(tmp_path / "out"))
