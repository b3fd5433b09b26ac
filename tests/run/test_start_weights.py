"""Initial weights of a run: weights that only code provides, and files that do not fit, are
refused."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from rich.console import Console

from hexa import recipes
from hexa.config import UserError
from hexa.nn.backbones import NetworkConfig, build
from hexa.recipes import experiment as experiments
from hexa.run.run import pretrain
from hexa.run.start import begin_from_weights
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone


def test_configuration_code_refusal() -> None:
    """A configuration runs no code."""
    named = {"start.weights": "python:antigravity:fly"}
    experiment = experiments.override(recipes.get("digits-moco-v2"), named)
    with pytest.raises(UserError, match="is code, which is not run here; save the state_dict"):
        begin_from_weights(experiment, named)
    noted = experiments.override(experiment, {"start.sha256": "0" * 64})
    with pytest.raises(UserError, match="is code, which is not run here"):
        pretrain(
            begin_from_weights(noted, {"start.weights"}),
            "nowhere",
            console=Console(file=io.StringIO()),
        )
    assert "antigravity" not in sys.modules


# -- files that do not fit --------------------------------------------------------------------------------------------

VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starts")
    torch.save(build(NetworkConfig(name="resnet18")).state_dict(), folder / "resnet18.pt")
    torch.save({"fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}, folder / "head.pt")
    torch.save(timm.create_model("convnext_atto").state_dict(), folder / "convnext.pt")
    vit = random_backbone(NetworkConfig(name="vit_tiny_patch16_224", options=VIT), 32)
    save_backbone(vit, folder / "vit.safetensors")
    torch.save(vit.network.state_dict(), folder / "vit.pt")
    cut = {
        f"cut-{name}": (folder / name).read_bytes()[:50_000]
        for name in ("resnet18.pt", "vit.safetensors")
    }
    for name, content in (cut | {"text.pt": b"hello\n", "image.pt": b"\xff\xd8\xff"}).items():
        (folder / name).write_bytes(content)
    np.savez(folder / "features.npz", features=np.ones(3))
    return folder


def test_convnext_head_norm(files: Path) -> None:
    """timm's ConvNeXts have their last normalisation in `head`, next to the classifier."""
    made = load_backbone(f"{files}/convnext.pt#convnext_atto").state_dict()
    assert torch.equal(
        made["head.norm.weight"], torch.load(files / "convnext.pt")["head.norm.weight"]
    )
    assert "head.fc.weight" not in made
