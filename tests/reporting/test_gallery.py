"""The grid of hard examples, pixel by pixel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hexa.core import Example, HardExample
from hexa.hard_examples.cutmix import CutMix
from hexa.objective import Objective
from hexa.ops import draws
from hexa.reporting.gallery import gallery
from hexa.reporting.pictures import MID_GREY, Gallery
from hexa.runtime.random import Stream
from tests.laws.cases import BATCH, SIZE, Case, backward
from tests.modules import unchanged

#: A mixed and an attacked view of each image, and a mixture of attacked ones.
EVERY = {
    "attack": {"kind": "adversarial"},
    "mix": {"kind": "cutmix"},
    "late": {"kind": "cutmix", "source": "attack"},
}


def objective(**hard_examples: dict[str, Any]) -> Objective:
    case = Case("moco", {"bn_groups": 1}, hard_examples)
    return case.objective(case.build(torch.float32))


def column(grid: Gallery, place: int) -> list[str]:
    return [row[place] for row in grid.captions]


def pixels(images: torch.Tensor) -> np.ndarray:
    channels_last = images.double().permute(0, 2, 3, 1).numpy()
    levels = np.rint(255 * channels_last)
    return levels.clip(0, 255).astype(np.uint8)


def test_perturbation_column() -> None:
    """Pixels at a border of [0, 1] that the attack pushes outwards stay, since it clips: mid-grey exactly there."""
    batch = Case("moco").batch(dtype=torch.float32)
    saturated = (batch.crops[0] > 0.5).float()
    batch = replace(batch, crops=(saturated, batch.crops[1]))
    made = objective(attack=EVERY["attack"])
    attacked = made.examples(batch)["attack"].crops[0]
    delta = pixels(attacked).astype(int) - pixels(saturated).astype(int)
    shown = gallery(made, batch).tiles[:, 1]
    assert 0.2 < (delta == 0).mean() < 0.8
    assert (shown[delta == 0] == MID_GREY).all()
    assert np.array_equal(shown.astype(int), MID_GREY + 64 * delta)


def test_mixed_column() -> None:
    """The mixed column holds the pasted region."""
    batch = Case("moco").batch(dtype=torch.float32)
    grid = gallery(objective(mix={"kind": "cutmix", "inside": True}), batch)
    stream = batch.stream.child("hard example", "mix")
    permutation = draws.partners(BATCH, stream).numpy()
    boxes = CutMix(inside=True).boxes(
        BATCH,
        SIZE,
        stream.child("box", 0),
    )
    top, bottom, left, right = boxes[0].tolist()
    clean = pixels(batch.crops[0])
    mixed = grid.tiles[:, -1]
    expected = clean.copy()
    expected[:, top:bottom, left:right] = clean[permutation][:, top:bottom, left:right]
    area = (bottom - top) * (right - left)
    assert area > 0
    assert np.array_equal(mixed, expected)
    share = 1 - area / SIZE**2
    assert all(caption.startswith(f"λ {share:.2f} · loss ") for caption in column(grid, -1))


def test_gallery_captions() -> None:
    """Captions are the losses of training."""
    made = objective(attack=EVERY["attack"])
    batch = Case("moco").batch(dtype=torch.float32)
    grid = gallery(made, batch)
    parts = backward(made, batch)
    for place, name in ((0, "std"), (2, "attack")):
        shown = [float(caption.removeprefix("loss ")) for caption in column(grid, place)]
        assert sum(shown) / BATCH == pytest.approx(
            parts[name].loss.item(),
            abs=0.006,
        )


def test_gallery_side_effects() -> None:
    """Columns follow from the objective, and looking changes nothing."""
    made = objective(**EVERY)
    with unchanged(made.method):
        grid = gallery(
            made,
            Case("moco").batch(dtype=torch.float32),
            num_images=5,
        )
    assert grid.heads == ("view", "perturbation × 64", "attack", "mix", "late of attack")
    assert grid.tiles.shape == (5, 5, SIZE, SIZE, 3)
    assert all(p.grad is None for p in made.method.parameters())


class Inverted(HardExample):
    """A kind that reporting has never heard of."""

    def __call__(self, source: Example, stream: Stream) -> Example:
        return source.at(tuple(1 - crop for crop in source.crops))


def test_foreign_hard_example_column() -> None:
    """Any hard example gets a column."""
    batch = Case("moco").batch(dtype=torch.float32)
    made = Objective(objective().method, {"inverted": Inverted(kind="inverted")})
    grid = gallery(made, batch)
    assert grid.heads == ("view", "inverted")
    negative = pixels(1 - batch.crops[0])
    assert np.array_equal(grid.tiles[:, 1], negative)
