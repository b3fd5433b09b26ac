"""The transform of images for a backbone, and its record in a result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hexa import recipes
from hexa.config import ConfigError, UserError
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.evaluation import evaluate
from hexa.evaluation.features import transform_of
from hexa.recipes.experiment import override
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.evaluation.given import QUIET, SMALL

KNN = QUIET | {"k": 5}


@pytest.fixture
def file(tmp_path: Path) -> str:
    save_backbone(random_backbone(SMALL, 8), tmp_path / "b.safetensors")
    return str(tmp_path / "b.safetensors")


def test_backbone_transform() -> None:
    """A backbone brings its transform."""
    found = transform_of(load_backbone("random:resnet18"))
    assert vars(found) == {"size": 224, "short": 236, "interpolation": "bicubic"}
    assert vars(transform_of(random_backbone(SMALL, 16))) == vars(EvaluationTransform(16))


def test_preparation_in_result(file: str) -> None:
    """Values that a user sets are in the result."""
    plain = evaluate("knn", file, "digits", **KNN)
    other = evaluate("knn", file, "digits", mean="0.1,0.9,0.1", size=16, **KNN)
    again = evaluate(
        "knn",
        file,
        "digits",
        mean=[0.1, 0.9, 0.1],
        size=16,
        **KNN,
    )
    assert plain["protocol"] == "knn/k5-t0.07"
    assert plain["notes"] == []
    assert other["protocol"] == again["protocol"] == "knn/k5-t0.07-mean0.1,0.9,0.1-size16"
    assert other["metrics"] == again["metrics"] != plain["metrics"]
    assert other["deviations"]["mean"] == [[0.485, 0.456, 0.406], [0.1, 0.9, 0.1]]
    assert other["deviations"]["size"] == [8, 16]
    assert other["backbone_facts"]["preparation"]["from"]["size"] == "given"
    assert plain["transform"]["size"] == 8
    assert other["transform"]["size"] == 16
    assert "mean 0.1,0.9,0.1, size 16 (given)" in other["notes"][0]


@pytest.mark.parametrize(("name", "value"), [("mean", 128), ("mean", -0.1), ("std", 58.4)])
def test_statistics_of_other_pixels(name: str, value: float) -> None:
    """A mean or deviation that is not of pixels in [0, 1] is refused, in evaluation and training."""
    with pytest.raises(UserError, match=f"^{name} must be from 0 to 1"):
        load_backbone("random:small-resnet-8", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"^network\.{name}: must be from 0 to 1"):
        override(recipes.get("digits-moco-v2"), {f"network.{name}": value})


def test_image_of_one_pixel() -> None:
    """The smallest image is one pixel."""
    grey = torch.full((3, 9, 8), 100, dtype=torch.uint8)
    found = EvaluationTransform(load_backbone("pixels:1").image_size)(grey)
    assert torch.equal(found, grey[:, :1, :1])
