"""Only the needed part of a file is read, and damage in that part is detected."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hexa.config import UserError
from hexa.runtime import checkpoints
from hexa.weights import files
from hexa.weights.metadata import content_hash
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.refusals import one_line
from tests.torture.harness import forked
from tests.weights.test_pretrained import SMALL, run_folder


def run_of(folder: Path, steps: dict[int, dict[str, Tensor]], **beside: Any) -> Path:
    run_folder(folder)
    for step, state in steps.items():
        method = {f"query.backbone.{name}": value for name, value in state.items()} | beside.get(
            "method", {}
        )
        checkpoints.save(
            folder / "checkpoints",
            step,
            {"method": method, "optimizer": beside.get("optimizer", {})},
        )
    return folder


def state_of(seed: int) -> dict[str, Tensor]:
    return random_backbone(SMALL, 16, seed).network.state_dict()


def flip(path: Path, value: Tensor) -> None:
    """Flip a bit within the bytes of a tensor."""
    content = bytearray(path.read_bytes())
    place = content.find(value.contiguous().numpy().tobytes())
    assert place > 0
    content[place + 2] ^= 1
    path.write_bytes(content)


def test_partial_checkpoint_reading(tmp_path: Path) -> None:
    """Optimizer and banks stay on the disk."""
    large = torch.zeros(50_000_000)
    run = run_of(
        tmp_path / "run",
        {3: state_of(0)},
        method={"bank.embeddings": large},
        optimizer={"momentum": large},
    )
    found = forked(lambda: load_backbone(run).content_hash())
    assert found.value == random_backbone(SMALL, 16).content_hash()
    assert found.megabytes < 100


@pytest.mark.parametrize("part", ["network", "optimizer"])
def test_damaged_checkpoint(tmp_path: Path, part: str) -> None:
    """A damaged checkpoint is refused, and a run falls back to the one before it."""
    states = {3: state_of(0), 6: state_of(1)}
    momentum = torch.rand(100)
    run = run_of(tmp_path / "run", states, optimizer={"momentum": momentum})
    newest = run / "checkpoints" / "step-00000006.pt"
    damaged = states[6]["layer2.0.conv1.weight"] if part == "network" else momentum
    flip(newest, damaged)
    assert load_backbone(run).info["step"] == 3
    with pytest.raises(UserError, match=r"step-00000006\.pt: .*damaged"):
        load_backbone(newest)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int64])
def test_weight_number_types(tmp_path: Path, kind: torch.dtype) -> None:
    """Weights are real numbers."""
    path = save_backbone(random_backbone(SMALL, 16), tmp_path / "b.safetensors")
    with safetensors.safe_open(path, framework="pt") as file:
        fields = json.loads(file.metadata()["hexa"])
    state = state_of(0)
    state["conv1.weight"] = state["conv1.weight"].to(kind)
    metadata = {"hexa": json.dumps(fields | {"content": content_hash(state)})}
    safetensors.torch.save_file(state, path, metadata)
    with pytest.raises(UserError, match=r"conv1\.weight has type .*; weights must be floats"):
        load_backbone(path)


def test_expanded_tensor(tmp_path: Path) -> None:
    """One stored value may stand for any number of values."""
    path = tmp_path / "x.pth"
    torch.save({"conv1.weight": torch.zeros(1).expand(64, 3, 7, 7)}, path)
    with pytest.raises(UserError, match=r"conv1\.weight has fewer values than its shape"):
        load_backbone(path)
    mask = torch.zeros(1).expand(20, 20)
    torch.save({"w": torch.ones(20), "mask": mask}, path)
    assert files.read(path).state["mask"].equal(mask)


def test_foreign_pickles(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Foreign pickles are refused without warnings of torch."""
    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps({"called": print}, protocol=4))
    with pytest.raises(UserError, match=r"weights\.pth"):
        load_backbone(f"{path}#resnet18")
    assert not recwarn.list


def test_archives_of_other_kinds(tmp_path: Path) -> None:
    """Intact archives of other kinds are not called incomplete."""
    scripted = tmp_path / "scripted.pt"
    arrays = tmp_path / "arrays.npz"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), scripted)
    np.savez(arrays, weight=np.ones(3))
    for path in (scripted, arrays):
        with one_line(f"^{path}: TorchScript and .npz archives cannot be loaded; save the state"):
            files.read(path)
