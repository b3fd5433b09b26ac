"""Features are extracted once, and only for what made them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexa.evaluation import cache, evaluate
from hexa.nn.backbones import NetworkConfig
from hexa.nn.pretrained import Backbone, random_backbone

QUIET: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
SMALL = NetworkConfig(name="small-resnet", widths=(4, 8))


class Counting(nn.Module):
    """Counts the images that it sees."""

    num_features = 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images.mean((2, 3)) * self.scale


def counting() -> Backbone:
    config = NetworkConfig(name="counting", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return Backbone(Counting(), config.mean, config.std, 8, config)


def seen(backbone: Backbone) -> int:
    assert isinstance(backbone.network, Counting)
    return backbone.network.seen


def test_a_second_protocol_finds_the_features_of_the_first() -> None:
    first, second = counting(), counting()
    one = evaluate("knn", first, "digits", **QUIET)
    assert seen(first) == 1347 + 450
    again = evaluate("knn", second, "digits", **QUIET)
    assert seen(second) == 0
    assert again["metrics"] == one["metrics"]
    evaluate("probe", second, "digits", **QUIET)
    assert seen(second) == 0
    evaluate("probe", second, "digits", cached=False, **QUIET)
    assert seen(second) == 1347 + 450


@pytest.mark.parametrize("change", ["weights", "mean", "size", "images", "holdout", "precision"])
def test_whatever_makes_other_features_is_another_entry(change: str) -> None:
    first, second = counting(), counting()
    evaluate("knn", first, "digits", **QUIET)
    options, data = dict(QUIET), "digits"
    if change == "weights":
        with torch.no_grad():
            next(second.parameters()).mul_(2)
    elif change == "mean":
        second.mean = (0.5, 0.5, 0.5)
    elif change == "size":
        second.image_size = 10
    elif change == "images":
        data, options["test_data"] = "digits#test", "digits#train"
    elif change == "holdout":
        options["holdout"] = 0.5
    else:
        options["precision"] = "bf16"
    evaluate("knn", second, data, **options)
    assert seen(second) == {"images": 0, "holdout": 1347}.get(change, 1347 + 450)


def test_a_damaged_entry_is_made_anew() -> None:
    one = evaluate("knn", random_backbone(SMALL, 8), "digits", **QUIET)
    files = list((Path(os.environ["HEXA_CACHE"]) / "features").iterdir())
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    assert evaluate("knn", random_backbone(SMALL, 8), "digits", **QUIET)["metrics"] == one["metrics"]


def test_what_was_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXA_CACHE_GB", "0.0001")
    rows, positions = torch.rand(100, 100), torch.arange(100)  # 40.8 kB
    for number, name in enumerate(("a", "b")):
        cache.store(name, rows, positions)
        os.utime(cache._folder() / f"{name}.safetensors", (number, number))
    assert cache.load("a") is not None, "which also makes it the last used"
    cache.store("c", rows, positions)
    assert [cache.load(name) is not None for name in "abc"] == [True, False, True]
    cache.store("large", torch.rand(1000, 100), positions)
    assert cache.load("large") is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEXA_CACHE", str(tmp_path / "file"))
    assert evaluate("knn", counting(), "digits", **QUIET)["metrics"]["top1"] > 0
