"""Initial weights of a run: weights that only code provides, and files that do not fit, are
refused."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import timm
import torch
from rich.console import Console

from hexa import recipes
from hexa.config import UserError
from hexa.recipes import experiment as experiments
from hexa.run.run import pretrain
from hexa.run.start import begin_from_weights
from hexa.weights.pretrained import load_backbone


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


def test_convnext_head_norm(tmp_path: Path) -> None:
    """timm's ConvNeXts have their last normalisation in `head`, next to the classifier."""
    state = timm.create_model("convnext_atto").state_dict()
    torch.save(state, tmp_path / "convnext.pt")
    made = load_backbone(f"{tmp_path}/convnext.pt#convnext_atto").state_dict()
    assert torch.equal(made["head.norm.weight"], state["head.norm.weight"])
    assert "head.fc.weight" not in made
