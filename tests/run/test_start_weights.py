"""What a run can begin with, and what it can't: weights that code gives, and files that do not fit."""

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
from hexa.run.run import pretrain, resume
from hexa.run.start import begin_from_weights
from hexa.runtime import checkpoints
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.run.test_start import TINY

OWN = """
import timm, torch
torch.manual_seed(1)
def known(): return timm.create_model("resnet18")
def fed_otherwise():
    network = known()
    network.mean, network.image_size = (0.1, 0.2, 0.3), 64
    return network
def of_torchvision():
    from torchvision.models import resnet18
    return resnet18(num_classes=7)
def unknown(): return torch.nn.Conv2d(3, 4, 3)
def other_patches():
    network = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4)
    network.image_size = 32
    return network
"""


def test_code_that_the_user_names_runs_once_and_no_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "own.py"
    code.write_text(OWN)
    given = TINY | {
        "views.size": 8,
        "max_steps": 4,
        "training.checkpoint_every_steps": 2,
        "training.keep": 20,
    }
    given |= {"data": "digits", "start.weights": f"python:{code}:known"}
    experiment = begin_from_weights(
        experiments.override(recipes.get("cifar10-moco-v2+small"), given), given
    )
    code.unlink()
    assert (experiment.network.name, experiment.views.test_size) == ("resnet18", 8)
    assert experiment.network.mean == (0.485, 0.456, 0.406)
    assert "python:" not in experiment.model_dump_json()
    run = pretrain(experiment, tmp_path / "run", console=Console(file=io.StringIO()))
    whole = load_backbone(run).content_hash()
    Path(str(experiment.start.weights)).unlink()
    (run / "backbone.safetensors").unlink()
    checkpoints.checkpoints(run / "checkpoints")[-1].unlink()
    resume(run, console=Console(file=io.StringIO()))
    assert load_backbone(run).content_hash() == whole


def test_a_configuration_runs_no_code() -> None:
    """Only what the user typed does: an experiment that came from a file or a recipe names weights, not code."""
    experiment = experiments.override(
        recipes.get("digits-moco-v2"), {"start.weights": "python:antigravity:fly"}
    )
    with pytest.raises(
        UserError, match="which a file must not name; use --start python:antigravity:fly"
    ):
        begin_from_weights(experiment, {"epochs": 1})
    noted = experiments.override(experiment, {"start.sha256": "0" * 64})
    with pytest.raises(UserError, match="is code, which a file must not name"):
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


def test_a_norm_that_is_called_a_head_is_kept(files: Path) -> None:
    """timm's ConvNeXts have their last normalisation in `head`, beside the classifier."""
    made = load_backbone(f"{files}/convnext.pt#convnext_atto").state_dict()
    assert torch.equal(
        made["head.norm.weight"], torch.load(files / "convnext.pt")["head.norm.weight"]
    )
    assert "head.fc.weight" not in made
