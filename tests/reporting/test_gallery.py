"""The grid of hard examples, pixel by pixel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hexa.core import Batch, Example, HardExample, Setting
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.methods.moco import MoCoConfig
from hexa.objective import Objective
from hexa.ops import draws
from hexa.reporting.gallery import gallery
from hexa.reporting.pictures import MID_GREY, Gallery
from hexa.runtime.random import Stream
from tests.laws.cases import backward
from tests.modules import unchanged


class Network(nn.Module):
    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images).flatten(1)


def objective(**hard_examples: HardExample) -> Objective:
    torch.manual_seed(0)
    setting = Setting(data_size=64, batch_size=16, branches=("main", "aux"))
    config = MoCoConfig(dim=8, queue_size=32, bn_groups=1)
    method = config.build(Network(), setting)
    return Objective(method.train(), hard_examples)


def a_batch(size: int = 16, count: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    crops = tuple(torch.rand(count, 3, size, size, generator=generator) for _ in range(2))
    return Batch(crops, torch.arange(count), Stream(0).child("step", 0))


def column(grid: Gallery, place: int) -> list[str]:
    return [row[place] for row in grid.captions]


def pixels(images: torch.Tensor) -> np.ndarray:
    channels_last = images.double().permute(0, 2, 3, 1).numpy()
    levels = np.rint(255 * channels_last)
    return levels.clip(0, 255).astype(np.uint8)


def test_gallery_columns() -> None:
    """Columns follow from the objective."""
    late = CutMix(source="attack")
    made = objective(attack=Adversarial(), mix=CutMix(), late=late)
    grid = gallery(made, a_batch(), num_images=5)
    assert grid.heads == (
        "view",
        "perturbation × 64",
        "attack",
        "mix",
        "late of attack",
    )
    assert grid.tiles.shape == (5, 5, 16, 16, 3)


def test_perturbation_column() -> None:
    """Pixels at a border of [0, 1] that the attack pushes outwards stay, since it clips: mid-grey exactly there."""
    batch = a_batch()
    saturated = (batch.crops[0] > 0.5).float()
    batch = replace(batch, crops=(saturated, batch.crops[1]))
    made = objective(attack=Adversarial())
    attacked = made.examples(batch)["attack"].crops[0]
    delta = pixels(attacked).astype(int) - pixels(saturated).astype(int)
    shown = gallery(made, batch, num_images=16).tiles[:, 1]
    assert 0.2 < (delta == 0).mean() < 0.8
    assert (shown[delta == 0] == MID_GREY).all()
    found = set(np.unique(shown))
    expected = {MID_GREY - 64, MID_GREY, MID_GREY + 64}
    assert found == expected
    assert np.array_equal(shown.astype(int), MID_GREY + 64 * delta)


def test_mixed_column() -> None:
    """The mixed column holds the pasted region."""
    batch = a_batch()
    mix = CutMix(inside=True)
    grid = gallery(objective(mix=mix), batch, num_images=16)
    stream = batch.stream.child("hard example", "mix")
    permutation = draws.partners(16, stream).numpy()
    boxes = mix.boxes(16, 16, stream.child("box", 0))
    top, bottom, left, right = boxes[0].tolist()
    clean = pixels(batch.crops[0])
    mixed = grid.tiles[:, -1]
    expected = clean.copy()
    expected[:, top:bottom, left:right] = clean[permutation][:, top:bottom, left:right]
    area = (bottom - top) * (right - left)
    assert area > 0
    assert np.array_equal(mixed, expected)
    share = 1 - area / 256
    assert all(caption.startswith(f"λ {share:.2f} · loss ") for caption in column(grid, -1))


def test_gallery_captions() -> None:
    """Captions are the losses of training."""
    made = objective(attack=Adversarial())
    batch = a_batch()
    grid = gallery(made, batch, num_images=16)
    parts = backward(made, batch)
    for place, name in ((0, "std"), (2, "attack")):
        shown = [float(caption.removeprefix("loss ")) for caption in column(grid, place)]
        assert sum(shown) / 16 == pytest.approx(parts[name].loss.item(), abs=0.006)


def test_gallery_side_effects() -> None:
    """Looking changes nothing."""
    made = objective(attack=Adversarial(), mix=CutMix())
    batch = a_batch()
    with unchanged(made.method):
        gallery(made, batch)
    assert all(p.grad is None for p in made.method.parameters())


class Inverted(HardExample):
    """A kind that reporting has never heard of."""

    def __call__(self, source: Example, stream: Stream) -> Example:
        return source.at(tuple(1 - crop for crop in source.crops))


def test_foreign_hard_example_column() -> None:
    """Any hard example gets a column."""
    batch = a_batch()
    made = objective(inverted=Inverted(kind="inverted"))
    grid = gallery(made, batch, num_images=3)
    assert grid.heads == ("view", "inverted")
    negative = pixels(1 - batch.crops[0][:3])
    assert np.array_equal(grid.tiles[:, 1], negative)
