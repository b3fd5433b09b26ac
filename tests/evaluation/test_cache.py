"""Features are extracted once, and only for what made them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hexa.config import UserError
from hexa.evaluation import cache, evaluate
from hexa.nn.backbones import NetworkConfig
from hexa.nn.preparation import Preparation
from hexa.nn.pretrained import Backbone, random_backbone
from hexa.runtime.lock import locked

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
    return Backbone(Counting(), Preparation(config.mean, config.std, 8), config)


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
        second.preparation = replace(second.preparation, mean=(0.5, 0.5, 0.5))
    elif change == "size":
        second.preparation = replace(second.preparation, size=10)
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


def test_states_of_detectors_are_bounded_too_but_for_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit for both; each entry here is of 40 kB, and the limit of 100 kB."""
    monkeypatch.setenv("HEXA_CACHE_GB", "0.0001")
    rows, positions = torch.rand(100, 98), torch.arange(100)
    states = {name: cache.state_folder(name) for name in ("oldest", "old", "new")}
    for age, state in enumerate(states.values()):
        (state / "seen-1").mkdir(parents=True)
        for file in (state / "step-00000002.pt", state / "seen-1" / "step-00000003.pt"):
            file.write_bytes(bytes(20_000))
            os.utime(file, (age, age))
        for folder in (state / "seen-1", state):
            os.utime(folder, (age, age))
    with locked(cache.lock_of(states["oldest"]), "is in use"):
        cache.store("features", rows, positions)
        assert [state.exists() for state in states.values()] == [True, False, False]
    assert cache.load("features") is not None
    cache.trim()
    assert states["oldest"].exists()
    cache.store("more", rows, positions)
    assert [cache.load(name) is not None for name in ("features", "more")] == [True, True]
    assert not states["oldest"].exists()
    monkeypatch.setenv("HEXA_CACHE_GB", "few")
    assert "HEXA_CACHE_GB=few" in (cache.trim() or "")


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEXA_CACHE", str(tmp_path / "file"))
    assert evaluate("knn", counting(), "digits", **QUIET)["metrics"]["top1"] > 0


def bitmaps(root: Path, red: str) -> str:
    """Two classes of flat images, of which this is the red one; names and sizes in bytes never change."""
    for split, count in (("train", 6), ("test", 3)):
        for kind in ("one", "two"):
            for number in range(count):
                path = root / split / kind / f"{number}.bmp"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (250 - number, 0, 9) if kind == red else (9, 0, 250 - number)).save(path)
    return f"folder:{root}"


@pytest.mark.parametrize("old_dates", [False, True])
def test_images_replaced_under_the_same_names_and_sizes_are_looked_at(tmp_path: Path, old_dates: bool) -> None:
    options: dict[str, Any] = {"k": 1, **QUIET}
    data = bitmaps(tmp_path / "x", "one")
    assert evaluate("knn", "pixels:8", data, **options)["metrics"]["top1"] == 100
    sizes = {path: path.stat() for path in tmp_path.rglob("*.bmp")}
    bitmaps(tmp_path / "y", "two")
    for path, before in sizes.items():
        if "test" in path.parts:  # the training images stay, so that every test image is nearest to the other class
            other = Path(str(path).replace("/x/", "/y/"))
            assert other.stat().st_size == before.st_size
            if old_dates:
                os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
            other.rename(path)
    cached, fresh = (evaluate("knn", "pixels:8", data, cached=cached, **options) for cached in (True, False))
    assert cached["metrics"] == fresh["metrics"]
    assert cached["metrics"]["top1"] == 0


def test_one_replaced_image_of_many_is_looked_at(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(600):
            path = tmp_path / split / f"{number % 2}" / f"{number:03d}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number % 250, 0, len(split))).save(path)
    data, first, second = f"folder:{tmp_path}", counting(), counting()
    evaluate("knn", first, data, **QUIET)
    Image.new("RGB", (4, 4), (251, 0, 0)).save(tmp_path / "test" / "1" / "303.bmp")
    evaluate("knn", second, data, **QUIET)
    assert (seen(first), seen(second)) == (1200, 600)


def test_train_and_test_of_equal_names_and_sizes_are_told_apart_by_contents(tmp_path: Path) -> None:
    for split, other in (("train", 0), ("test", 5)):
        for kind, colour in (("one", (200, other, 0)), ("two", (0, other, 200))):
            path = tmp_path / split / kind / "1.bmp"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), colour).save(path)
    assert evaluate("knn", "pixels:8", f"folder:{tmp_path}", k=1, **QUIET)["metrics"]["top1"] == 100
    shutil.rmtree(tmp_path / "test")
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    with pytest.raises(UserError, match="would be scored on the images it learns from"):
        evaluate("knn", "pixels:8", f"folder:{tmp_path}", k=1, **QUIET)
