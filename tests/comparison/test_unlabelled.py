"""Measures without labels against naive loops and on features whose answer is known; near-duplicates."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from hexa.comparison import leakage, unlabelled
from hexa.comparison.extraction import Extraction, passes_of
from hexa.data import open_source
from hexa.data.sources.source import Subset
from hexa.weights.pretrained import random_backbone
from tests.evaluation.given import SMALL

DRAW = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=DRAW)


def passes(images: torch.Tensor, noise: float = 0.1) -> unlabelled.Passes:
    """Views with noise; mixtures that lie between their images by their share."""
    partners, shares = torch.arange(len(images)).roll(1), torch.rand(len(images), generator=DRAW)
    mixed = shares[:, None] * images + (1 - shares[:, None]) * images[partners]
    views = (images + noise * normal(*images.shape) for _ in range(2))
    return unlabelled.Passes(images, *views, mixed, partners, shares)


def test_lidar_is_the_rank_of_linear_discriminants() -> None:
    a, b = normal(200, 6), normal(200, 6)
    b = a + 0.3 * b
    between, within = np.zeros((6, 6)), np.zeros((6, 6))
    centres = [(x + y) / 2 for x, y in zip(a.double().numpy(), b.double().numpy(), strict=True)]
    for x, y, centre in zip(a.double().numpy(), b.double().numpy(), centres, strict=True):
        between += np.outer(centre - np.mean(centres, 0), centre - np.mean(centres, 0)) / 199
        within += (np.outer(x - centre, x - centre) + np.outer(y - centre, y - centre)) / 200
    root = np.linalg.inv(scipy.linalg.sqrtm(within + 1e-4 * np.eye(6)))
    values = np.linalg.eigvalsh(root @ between @ root)
    share = values / values.sum()
    assert unlabelled._lidar(a, b) == pytest.approx(
        np.exp(-(share * np.log(share)).sum()), rel=1e-4
    )


def test_alpha_is_the_decay_of_the_spectrum() -> None:
    x = (
        torch.linalg.qr(normal(500, 64)).Q * torch.arange(1, 65) ** -0.75
    )  # eigenvalues fall as n^−1.5
    assert unlabelled._alpha(x) == pytest.approx(1.5, abs=1e-3)


def test_the_dimension_of_a_plane_is_two() -> None:
    plane = torch.rand(2000, 2, generator=DRAW, dtype=torch.float64) @ normal(2, 10).double()
    assert unlabelled._dimension(plane) == pytest.approx(2, abs=0.15)


def test_what_lies_between_its_images_mixes_and_noise_does_not() -> None:
    images = normal(300, 16)
    found = unlabelled.measures(passes(images))
    assert found["mixing"] > 90
    noise = unlabelled.Passes(**{**vars(passes(images)), "mixed": normal(300, 16)})
    assert abs(unlabelled.measures(noise)["mixing"]) < 20
    assert set(found) == set(unlabelled.ARROWS)


def test_separate_groups_are_learnable_and_noise_is_less() -> None:
    groups = normal(16, 32).repeat_interleave(16, 0) + 0.01 * normal(256, 32)
    found, noise = (
        unlabelled.measures(passes(x))["learnability"] for x in (groups, normal(256, 32))
    )
    assert found > 90 > 60 > noise


def test_a_collapsed_network_has_measures_too() -> None:
    """All features alike, as after a ruinous learning rate."""
    found = unlabelled.measures(passes(torch.full((40, 8), 6.0), noise=0.0))
    assert all(np.isfinite(value) for value in found.values())
    assert found["alpha"] == found["dimension"] == found["mixing"] == 0


def test_kept_neighbourhoods_are_those_of_a_loop() -> None:
    a, b = normal(40, 5), normal(40, 5)
    near = []
    for features in (a, b):
        x = (features - features.mean(0)).numpy()
        ranked = [
            np.argsort(-(x @ x[image]) / np.linalg.norm(x, axis=1)).tolist() for image in range(40)
        ]
        near.append([set([o for o in row if o != image][:10]) for image, row in enumerate(ranked)])
    shared = [len(one & other) / 10 for one, other in zip(*near, strict=True)]
    assert unlabelled.kept(a, b).tolist() == pytest.approx(shared)
    assert unlabelled.kept(a, b, rows=torch.tensor([7, 3])).tolist() == pytest.approx(
        [shared[7], shared[3]]
    )
    assert unlabelled.kept(a, 3 * a).eq(1).all()


def test_all_passes_come_from_one_decoding_and_depend_on_the_seed_alone() -> None:
    source = Subset(open_source("digits", "test"), np.arange(40))
    backbone = random_backbone(SMALL, 12)
    once, again = (
        passes_of(backbone, source, Extraction(seed=3), torch.device("cpu"), print)[0]
        for _ in range(2)
    )
    for name, value in vars(once).items():
        assert torch.equal(value, vars(again)[name])
    assert not torch.equal(once.first, once.second)
    assert 0.15 < once.shares.min() < once.shares.max() < 0.85
    assert once.partners.tolist() == [39, *range(39)]


def test_near_duplicates_survive_brightness_and_size_but_not_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pictures = torch.rand(6, 16, 16, generator=DRAW)
    twin = 0.5 * pictures[2] + 0.2 + 0.002 * normal(16, 16)
    thumbs = leakage.standardised(torch.cat([pictures, twin[None]]).flatten(1))
    assert leakage.duplicates(thumbs).tolist() == [-1] * 6 + [2]
    assert leakage.duplicates(thumbs[:3], thumbs[3:]).tolist() == [-1, -1, 3]
    assert leakage.duplicates(thumbs[:2], thumbs[:0]).tolist() == [-1, -1]
    monkeypatch.setattr(leakage, "_CHUNK", 2)
    assert leakage.duplicates(thumbs).tolist() == [-1] * 6 + [2]
    assert leakage.duplicates(thumbs[5:], thumbs[:5]).tolist() == [-1, 2]
