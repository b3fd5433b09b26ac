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
    scores = [math.exp(float(query @ c) / float(t)) for c, t in zip(prototypes, phi, strict=True)]
    return -math.log(scores[own] / sum(scores))


def test_loss_is_the_written_one_and_zero_without_target() -> None:
    query = unit(6, 4).view(2, 3, 4).requires_grad_()
    prototypes = unit(5, 4, seed=1)
    phi = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    targets = torch.tensor([3, -100, 0]).expand(2, -1)
    loss = proto_nce(query, prototypes, phi, targets).detach()
    for view in range(2):
        for image, own in enumerate((3, None, 0)):
            expected = (
                0.0 if own is None else by_hand(query[view, image].detach(), prototypes, phi, own)
            )
            found = float(loss[view, image])
            assert found == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda q: proto_nce(q, prototypes, phi, targets), (query,))


def test_concentrations_are_the_written_ones() -> None:
    """13 clusters, one of them empty and one of a single row; percentiles are NumPy's."""
    data = unit(80, 4)
    centroids = unit(13, 4, seed=1)
    assignments = torch.randint(2, 13, (80,), generator=torch.Generator().manual_seed(2))
    assignments[7] = 1
    density = []
    for k in range(13):
        members = [data[i] for i in range(80) if int(assignments[i]) == k]
        distances = [math.sqrt(sum(float(d) ** 2 for d in v - centroids[k])) for v in members]
        density.append(
            sum(distances) / len(members) / math.log(len(members) + 10)
            if len(members) > 1
            else None
        )
    assert density.count(None) == 2
    largest = max(d for d in density if d is not None)
    filled = np.array([largest if d is None else d for d in density])
    clipped = filled.clip(np.percentile(filled, 10), np.percentile(filled, 90))
    expected = 0.2 * clipped / clipped.mean()
    found = concentrations(data, centroids, assignments, 0.2)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-12, atol=0)
    assert float(found.mean()) == pytest.approx(0.2)
    assert float(found[0]) == float(found.max())


@pytest.mark.parametrize("members", [1, 3], ids=["one row each", "copies of one row"])
def test_clusters_without_any_spread_have_a_temperature_too(members: int) -> None:
    centroids = unit(4, 4)
    found = concentrations(
        centroids.repeat(members, 1), centroids, torch.arange(4).repeat(members), 0.2
    )
    expected = torch.full((4,), 0.2, dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_prototypes_of_the_batch_are_there_once_and_the_rest_is_random() -> None:
    own = torch.tensor([7, -100, 40, 7, 12])
    everyone = torch.cat([torch.tensor([3, 40, -100, 19]), own])
    counts = torch.zeros(50)
    for seed in range(300):
        compared, targets = compare(own, everyone, 50, 14, torch.Generator().manual_seed(seed))
        assert len(compared) == len(set(compared.tolist())) == 14
        assert {3, 7, 12, 19, 40} <= set(compared.tolist())
        assert targets[1] == -100
        found = compared[targets[own >= 0]].tolist()
        expected = own[own >= 0].tolist()
        assert found == expected
        for place in targets[
            own >= 0
        ].tolist():  # so an image's positive is not among its negatives
            assert int(compared[place]) not in [
                int(c) for at, c in enumerate(compared) if at != place
            ]
        counts[compared] += 1
    rest = counts[[k for k in range(50) if k not in (3, 7, 12, 19, 40)]]
    assert float(rest.sum()) == 300 * 9
    assert (
        30 < float(rest.min()) <= float(rest.max()) < 95
    )  # 60 expected of each, standard deviation 7


@pytest.mark.parametrize("count", [5, 14])
def test_all_prototypes_are_compared_where_there_are_no_more(count: int) -> None:
    own = torch.tensor([4, 0, -100])
    compared, targets = compare(own, own, count, 14, torch.Generator())
    assert torch.equal(compared, torch.arange(count))
    assert torch.equal(targets, own)
