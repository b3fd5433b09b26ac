"""CPC against loops over patches: the context of a prediction, its negatives, and the mean over the
grid."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.core import MAIN, Batch
from hexa_paper.methods.cpc import CPC, CPCConfig, PatchHead
from tests.methods.setting import BATCH, batch, small

GRID = 4
SIZE = 12  # patches of 6 pixels, 2 apart


def cpc() -> CPC:
    config = CPCConfig(
        patch=6,
        stride=2,
        ahead=(1, 3),
        dim=5,
        hidden=7,
        layers=2,
        scale=0.5,
    )
    return small(config, 1, view_size=SIZE)


def embedded(made: CPC, data: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The embedding, its patches [B, D, G, G] and its predictions [B, K, D, G, G]."""
    embedding = made.embed(made.anchors(data), MAIN)
    parts = embedding[0].view(BATCH, -1, 5, GRID, GRID)
    return embedding, parts[:, 0], parts[:, 1:]


def naive(
    predictions: Tensor,
    patches: Tensor,
    ahead: tuple[int, ...],
    image: int,
    target: int,
    hidden: set[int],
) -> Tensor:
    """Losses of all predicted patches of an image, one by one; patches of `hidden` images at the place are left out."""
    found = []
    for number, k in enumerate(ahead):
        for row in range(GRID - k):
            for column in range(GRID):
                query = predictions[image, number, :, row, column]
                scores = {
                    (i, r, c): query @ patches[i, :, r, c]
                    for i in range(len(patches))
                    for r in range(GRID)
                    for c in range(GRID)
                    if not (i in hidden and (r, c) == (row + k, column))
                }
                own = torch.tensor(list(scores).index((target, row + k, column)))
                found.append(F.cross_entropy(torch.stack(list(scores.values())), own))
    return torch.stack(found)


def test_cpc_patch_features() -> None:
    """Every patch goes through the network by itself."""
    made = cpc().eval()
    data = batch(SIZE)
    _, patches, _ = embedded(made, data)
    for row, column in ((0, 0), (2, 1), (3, 3)):
        features = made.encoder.features(
            data.crops[0][:, :, 2 * row : 2 * row + 6, 2 * column : 2 * column + 6]
        )
        head = made.encoder.head
        expected = features @ head.patches.weight[:, :, 0, 0].T + head.patches.bias
        torch.testing.assert_close(patches[:, :, row, column], expected)


@pytest.mark.parametrize("row", range(GRID))
def test_cpc_prediction_context(row: int) -> None:
    """A prediction sees no row below its own."""
    head = PatchHead(8, CPCConfig(ahead=(1, 2), dim=5, hidden=7, layers=4)).double()
    features = torch.randn(2, 8, GRID, GRID, dtype=torch.float64, requires_grad=True)
    head(features)[:, 1:, :, row].square().sum().backward()
    found = (features.grad.abs().sum((0, 1, 3)) > 0).tolist()
    expected = [other <= row for other in range(GRID)]
    assert found == expected


def test_cpc_loss() -> None:
    """The loss of an image is the mean over its grid."""
    made = cpc()
    data = batch(SIZE)
    embedding, patches, predictions = embedded(made, data)
    labels = made.pseudo_labels(data, embedding.detach())
    found = made.loss(embedding, labels)
    clean = made.clean_loss(embedding, labels)
    assert found.shape == (1, BATCH)
    for i in range(BATCH):
        expected = naive(predictions, patches, (1, 3), i, i, set())
        assert len(expected) == 3 * GRID + GRID
        torch.testing.assert_close(found[0, i], expected.mean())
    assert torch.equal(found, clean)
    assert made.chance_loss == pytest.approx(math.log(BATCH * GRID**2))


def test_cpc_patch_gradient() -> None:
    """Patches learn in the clean term alone."""
    made = cpc()
    data = batch(SIZE)
    for loss, learns in ((made.clean_loss, True), (made.loss, False)):
        embedding = made.embed(made.anchors(data), MAIN)
        labels = made.pseudo_labels(data, embedding.detach())
        assert not labels.dictionary.requires_grad
        made.zero_grad()
        loss(embedding, labels).mean().backward()
        slope = made.encoder.head.patches.weight.grad
        assert (slope is not None and bool(slope.any())) == learns


def test_cpc_negatives_of_mixtures() -> None:
    """After two mixings, one of them of an image with itself."""
    made = cpc()
    data = batch(SIZE)
    embedding, patches, predictions = embedded(made, data)
    labels = made.pseudo_labels(data, embedding.detach())
    permutation = torch.tensor([1, 0, 2, 3])
    again = torch.tensor([2, 3, 0, 1])
    own, other = labels.mixed(permutation)
    for mixed, target in ((own, [0, 1, 2, 3]), (other, [1, 0, 2, 3])):
        losses = made.loss(embedding, mixed)
        for i in range(BATCH):
            shown = {i, int(permutation[i])} - {target[i]}
            torch.testing.assert_close(
                losses[0, i], naive(predictions, patches, (1, 3), i, target[i], shown).mean()
            )
    twice, _ = own.mixed(again)
    losses = made.loss(embedding, twice)
    for i in range(BATCH):
        shown = {int(permutation[i]), int(again[i]), int(permutation[again[i]])} - {i}
        expected = naive(predictions, patches, (1, 3), i, i, shown).mean()
        torch.testing.assert_close(losses[0, i], expected)
