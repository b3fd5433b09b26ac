"""Jigsaw puzzles, tile by tile (F29)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hexa.core import MAIN
from hexa_paper.methods.jigsaw import Jigsaw, JigsawConfig
from hexa_paper.ops import puzzles as tiles
from tests.methods.setting import BATCH, batch, small


def jigsaw(**fields: object) -> Jigsaw:
    known = {"puzzle": {"grid": 2}, "num_permutations": 24, "hidden": 5}
    config = JigsawConfig.model_validate({**known, **fields})
    return small(config, 1)


def test_jigsaw_tile_order() -> None:
    """A puzzle shows the tiles in the order of its number."""
    made = jigsaw(puzzle={"grid": 2, "tile_share": 1.0})
    data = batch(12)
    (puzzle,) = made.anchors(data)
    numbers = made.pseudo_labels(data, None).classes[0]
    for i in range(BATCH):
        order = made.permutations[numbers[i]].tolist()
        image = data.crops[0][i]
        cells = [
            image[:, :6, :6],
            image[:, :6, 6:],
            image[:, 6:, :6],
            image[:, 6:, 6:],
        ]
        shown = [cells[place] for place in order]
        above = torch.cat(shown[:2], 2)
        below = torch.cat(shown[2:], 2)
        assert torch.equal(puzzle[i], torch.cat([above, below], 1))


def test_jigsaw_permutations() -> None:
    """Permutations differ and lie far apart."""
    found = tiles.permutations(9, 50, torch.Generator().manual_seed(0))
    assert len({tuple(row) for row in found.tolist()}) == 50
    assert all(sorted(row) == list(range(9)) for row in found.tolist())
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(50, 9, generator=generator).argsort(1)
    itself = 99 * torch.eye(50, dtype=torch.long)
    distances = (found[:, None] != found).sum(-1) + itself
    by_chance = (drawn[:, None] != drawn).sum(-1) + itself
    assert distances.min() > by_chance.min()
    every = tiles.permutations(4, 24, torch.Generator())
    assert len({tuple(row) for row in every.tolist()}) == 24
    with pytest.raises(ValueError, match="24 permutations, got count 25"):
        tiles.permutations(4, 25, torch.Generator())


def test_jigsaw_loss() -> None:
    """The loss is cross-entropy over permutations of features, tile by tile."""
    made = jigsaw()
    data = batch(16)
    made.eval()
    labels = made.pseudo_labels(data, None)
    (puzzle,) = made.anchors(data)
    embedding = made.embed((puzzle,), MAIN)
    head = made.encoder.head
    for i in range(BATCH):
        each = []
        for tile in tiles.cut(puzzle[i : i + 1], 2):
            features = made.encoder.features(tile[None])
            each.append(head.each(features)[0])  # type: ignore[union-attr,operator]
        joined = head.joined(torch.cat(each))  # type: ignore[union-attr,operator]
        torch.testing.assert_close(embedding[0, i], joined)
    expected = F.cross_entropy(embedding[0], labels.classes[0], reduction="none")
    torch.testing.assert_close(made.loss(embedding, labels)[0], expected)
