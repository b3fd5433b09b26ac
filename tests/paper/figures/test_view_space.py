"""View space, and every figure from the command line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hexa import recipes
from hexa.recipes.experiment import override
from hexa.run.visualize import Look
from hexa_paper.figures.view_space import embed_views, partners
from tests.modules import unchanged

TINY: dict[str, object] = {
    "method.bn_groups": 2,
    "method.queue_size": 64,
    "network.widths": [4, 8],
    "batch_size": 32,
    "training.device": "cpu",
    "training.precision": "fp32",
}


def test_mixed_view_partners() -> None:
    """The partner of a mixed view is read off its pixels."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(6, 3, 8, 8, generator=generator)
    permutation = torch.tensor([3, 0, 5, 1, 2, 4])
    mixed = clean.clone()
    for row in range(5):  # nothing is pasted into the last
        box = (slice(None), slice(2, 6), slice(row, row + 3))
        mixed[row][box] = clean[permutation[row]][box]
    found = partners(clean, mixed)
    assert found.tolist() == [3, 0, 5, 1, 2, 5]


def attacked(look: Look, radius: float) -> Look:
    fields = {f"hard_examples.adversarial.{name}": radius for name in ("epsilon", "step_size")}
    return replace(look, experiment=override(look.experiment, fields))


def test_view_space_projection() -> None:
    """View space is a projection of the embeddings and changes nothing."""
    moco = Look.at(
        override(recipes.get("digits-hexa-moco"), TINY),
        "digits",
    )
    with unchanged(moco.method):
        space = embed_views(attacked(moco, 0.0), num_images=3, num_views=5)
        moved = embed_views(attacked(moco, 8.0), num_images=3, num_views=5)
    assert space.image.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert space.adversarial == pytest.approx(space.clean)  # an attack of radius 0 moves nothing
    everything = np.concatenate([space.clean, space.adversarial, space.mixed])
    assert everything.mean(0) == pytest.approx([0, 0], abs=1e-6)  # principal components
    first = everything[:, 0]
    second = everything[:, 1]
    assert first.var() >= second.var()
    correlation = np.corrcoef(first, second)[0, 1]
    assert abs(correlation) < 1e-6
    distance = np.abs(moved.adversarial - moved.clean)
    assert distance.max() > 1e-3
