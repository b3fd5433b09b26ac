"""ProtoNCE, concentrations and the choice of prototypes against loops over images (fp64), and NumPy's percentiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hexa.ops.proto_nce import compare, concentrations, proto_nce
from tests.ops.test_contrastive import unit


def by_hand(query: Tensor, prototypes: Tensor, phi: Tensor, own: int) -> float:
    pairs = zip(prototypes, phi, strict=True)
    scores = [math.exp(float(query @ centre) / float(t)) for centre, t in pairs]
    return -math.log(scores[own] / sum(scores))


def test_proto_nce_loop() -> None:
    """The loss equals the written-out loop, and is zero without a target."""
    query = unit(6, 4).view(2, 3, 4).requires_grad_()
    prototypes = unit(5, 4, seed=1)
    phi = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    targets = torch.tensor([3, -100, 0]).expand(2, -1)
    loss = proto_nce(query, prototypes, phi, targets).detach()
    for view in range(2):
        for image, own in enumerate((3, None, 0)):
            expected = 0.0
            if own is not None:
                expected = by_hand(query[view, image].detach(), prototypes, phi, own)
            assert float(loss[view, image]) == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda q: proto_nce(q, prototypes, phi, targets),
        (query,),
    )


def test_concentration_loop() -> None:
    """13 clusters, one of them empty and one of a single row; percentiles are NumPy's."""
    data = unit(80, 4)
    centroids = unit(13, 4, seed=1)
    generator = torch.Generator().manual_seed(2)
    assignments = torch.randint(2, 13, (80,), generator=generator)
    assignments[7] = 1
    density = []
    for k in range(13):
        members = [data[i] for i in range(80) if int(assignments[i]) == k]
        distances = [float((member - centroids[k]).norm()) for member in members]
        count = len(members)
        mean = sum(distances) / max(count, 1)
        density.append(mean / math.log(count + 10) if count > 1 else None)
    assert density.count(None) == 2
    largest = max(d for d in density if d is not None)
    filled = np.array([largest if d is None else d for d in density])
    low = np.percentile(filled, 10)
    high = np.percentile(filled, 90)
    clipped = filled.clip(low, high)
    expected = 0.2 * clipped / clipped.mean()
    found = concentrations(data, centroids, assignments, 0.2)
    torch.testing.assert_close(
        found,
        torch.from_numpy(expected),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("members", [1, 3], ids=["one row each", "copies of one row"])
def test_zero_spread_concentrations(members: int) -> None:
    """Clusters without any spread have a temperature too."""
    centroids = unit(4, 4)
    rows = centroids.repeat(members, 1)
    assignments = torch.arange(4).repeat(members)
    found = concentrations(rows, centroids, assignments, 0.2)
    expected = torch.full((4,), 0.2, dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_compared_prototype_draws() -> None:
    """Each prototype of the batch appears once, and the others are random."""
    own = torch.tensor([7, -100, 40, 7, 12])
    everyone = torch.cat([torch.tensor([3, 40, -100, 19]), own])
    counts = torch.zeros(50)
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        compared, targets = compare(
            own,
            everyone,
            50,
            14,
            torch.randperm(50, generator=generator),
        )
        assert len(compared) == len(set(compared.tolist())) == 14
        assert {3, 7, 12, 19, 40} <= set(compared.tolist())
        assert targets[1] == -100
        places = targets[own >= 0]
        found = compared[places].tolist()
        expected = own[own >= 0].tolist()
        assert found == expected
        counts[compared] += 1
    others = [k for k in range(50) if k not in (3, 7, 12, 19, 40)]
    rest = counts[others]
    assert float(rest.sum()) == 300 * 9
    # 60 expected of each, standard deviation 7
    assert 30 < float(rest.min()) <= float(rest.max()) < 95


@pytest.mark.parametrize("count", [5, 14])
def test_all_compared_prototypes(count: int) -> None:
    """All prototypes are compared if there are no more."""
    own = torch.tensor([4, 0, -100])
    compared, targets = compare(own, own, count, 14, torch.randperm(count))
    assert torch.equal(compared, torch.arange(count))
    assert torch.equal(targets, own)
