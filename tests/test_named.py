"""`random:RECIPE`: the untrained network of a recipe, for the library and the command line alike."""

from __future__ import annotations

import json
from pathlib import Path

import hexa
from hexa import recipes
from hexa.weights.pretrained import load_backbone
from tests.conftest import Says


def test_random_recipe_network() -> None:
    """A recipe gives its network untrained."""
    name = "random:cifar10-moco-v2+small"
    experiment = recipes.get("cifar10-moco-v2+small")
    backbone = hexa.load_backbone(name)
    assert backbone.network_config == experiment.network
    assert backbone.image_size == 32
    assert backbone.mean == experiment.network.mean
    first, second = (load_backbone(hexa.named(name, seed)).content_hash() for seed in (0, 1))
    assert backbone.content_hash() == first != second


def test_named_passthrough() -> None:
    """Everything else passes unchanged."""
    for spec in (
        "runs/first",
        "timm:resnet18",
        "random:resnet18",
        "random:small-resnet-4-8",
        Path("x.pth"),
    ):
        assert hexa.named(spec) is spec


def test_random_recipe_result(tmp_path: Path, says: Says) -> None:
    """A result names it."""
    out = tmp_path / "result.json"
    assert "top1" in says(f"evaluate knn random:digits-moco-v2 --data digits --out {out}").out
    assert json.loads(out.read_text())["backbone"] == "random:digits-moco-v2"
