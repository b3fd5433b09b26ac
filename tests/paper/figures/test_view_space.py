"""View space, and every figure from the command line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hexa import recipes
from hexa.recipes.experiment import Experiment, override
from hexa.run.visualize import Look
from hexa_paper.figures.view_space import embed_views, partners
from tests.modules import unchanged

TINY = {
    "network.widths": [4, 8],
    "batch_size": 32,
    "training.device": "cpu",
    "training.precision": "fp32",
}


def tiny(recipe: str = "digits-hexa-moco", **changes: object) -> Experiment:
    return override(recipes.get(recipe), TINY | changes)


@pytest.fixture(scope="module")
def moco() -> Look:
    return Look.at(tiny(**{"method.bn_groups": 2, "method.queue_size": 64}), "digits")


def test_the_partner_of_a_mixed_view_is_read_off_its_pixels() -> None:
    clean = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    permutation = torch.tensor([3, 0, 5, 1, 2, 4])
    mixed = clean.clone()
    for row in range(5):  # nothing is pasted into the last
        mixed[row, :, 2:6, row : row + 3] = clean[permutation[row], :, 2:6, row : row + 3]
    found = partners(clean, mixed).tolist()
    expected = [3, 0, 5, 1, 2, 5]
    assert found == expected


def attacked(look: Look, radius: float) -> Look:
    fields = {f"hard_examples.adversarial.{name}": radius for name in ("epsilon", "step_size")}
    return replace(look, experiment=override(look.experiment, fields))


def test_view_space_is_a_projection_of_the_embeddings_and_changes_nothing(moco: Look) -> None:
    with unchanged(moco.method):
        space = embed_views(attacked(moco, 0.0), num_images=3, num_views=5)
        moved = embed_views(attacked(moco, 8.0), num_images=3, num_views=5)
    assert space.image.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert space.adversarial == pytest.approx(space.clean)  # an attack of radius 0 moves nothing
    everything = np.concatenate([space.clean, space.adversarial, space.mixed])
    assert everything.mean(0) == pytest.approx([0, 0], abs=1e-6)  # principal components
    found = everything[:, 0].var()
    expected = everything[:, 1].var()
    assert found >= expected
    assert abs(np.corrcoef(everything.T)[0, 1]) < 1e-6
    assert np.abs(moved.adversarial - moved.clean).max() > 1e-3
