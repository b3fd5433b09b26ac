"""Instance discrimination and PIRL against loops over images (F29)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.core import MAIN
from hexa.runtime.random import Stream
from hexa_paper.methods.instdisc import InstDisc, InstDiscConfig, Memory
from hexa_paper.methods.pirl import PIRL, PIRLConfig
from hexa_paper.ops import puzzles as tiles
from tests.methods.setting import BATCH, DATA, batch, small
from tests.paper.methods.test_infomin import infomin

TAU = 0.2


def instdisc(**fields: object) -> InstDisc:
    return small(InstDiscConfig(dim=6, temperature=TAU, num_negatives=5, **fields), 1)  # type: ignore[arg-type]


def pirl(**fields: object) -> PIRL:
    fields = {"dim": 6, "temperature": TAU, "num_negatives": 5, "puzzle": {"grid": 2}, **fields}
    return small(PIRLConfig.model_validate(fields))


def naive_nce(query: Tensor, own: Tensor, others: Tensor, z: float) -> Tensor:
    """Posterior by posterior, each with the constant of the noise."""
    noise = len(others) / DATA

    def posterior(memory: Tensor) -> Tensor:
        p = torch.exp(memory @ query / TAU) / z
        return p / (p + noise)

    return -torch.log(posterior(own)) - sum(torch.log(1 - posterior(other)) for other in others)


def test_nce_is_the_published_estimate() -> None:
    made = instdisc()
    data = batch(12)
    embedding = made.embed(made.anchors(data), MAIN)
    labels = made.pseudo_labels(data, None)
    assert labels.others.shape == (5, 6)
    found = made.loss(embedding, labels)
    for i in range(BATCH):
        own = made.bank.rows[data.index[i]]
        expected = naive_nce(embedding[0, i], own, labels.others, made.bank.partition)
        torch.testing.assert_close(found[0, i], expected)


def test_softmax_is_over_all_images() -> None:
    made = instdisc(objective="softmax")
    data = batch(12)
    embedding = made.embed(made.anchors(data), MAIN)
    found = made.loss(embedding, made.pseudo_labels(data, None))
    expected = F.cross_entropy(embedding[0] @ made.bank.rows.T / TAU, data.index, reduction="none")
    torch.testing.assert_close(found[0], expected)
    assert made.chance_loss == pytest.approx(math.log(DATA))
    hits = (embedding[0] @ made.bank.rows.T).argmax(1) == data.index
    assert torch.equal(made.correct(embedding, made.pseudo_labels(data, None))[0], hits)


def test_the_memory_follows_clean_embeddings_by_momentum() -> None:
    made = instdisc(bank_momentum=0.3)
    data = batch(12)
    before = made.bank.rows.clone()
    embedding = made.embed(made.anchors(data), MAIN).detach()
    made.commit(data, embedding, made.pseudo_labels(data, None))
    for i, image in enumerate(data.index):
        expected = F.normalize(0.3 * before[image] + 0.7 * embedding[0, i], dim=0)
        torch.testing.assert_close(made.bank.rows[image], expected)
    others = [i for i in range(DATA) if i not in data.index.tolist()]
    assert torch.equal(made.bank.rows[others], before[others])


def test_z_is_the_mean_over_random_directions() -> None:
    memory = Memory(InstDiscConfig(dim=64), 4096, seed=3, drawn=True)
    queries = F.normalize(
        torch.randn(200, 64, generator=Stream(1).generator(), dtype=torch.float64)
    )
    sampled = 4096 * torch.exp(queries @ memory.rows.double().T / 0.07).mean()
    assert memory.partition == pytest.approx(float(sampled), rel=0.02)


def test_pirls_two_terms_are_an_image_and_a_puzzle_of_the_other_view() -> None:
    made = pirl(puzzle_weight=0.2)
    data = batch(16, 16)
    view, puzzle = made.anchors(data)
    assert torch.equal(view, data.crops[0])
    assert puzzle.shape == (BATCH, 3, 12, 12)  # 2 × 2 tiles of 6 of 8 pixels
    embedding = made.embed((view, puzzle), MAIN)
    labels = made.pseudo_labels(data, None)
    losses = made.loss(embedding, labels)
    for v, share in enumerate((0.8, 0.2)):
        for i in range(BATCH):
            expected = naive_nce(
                embedding[v, i], made.bank.rows[data.index[i]], labels.others, made.bank.partition
            )
            torch.testing.assert_close(losses[v, i], 2 * share * expected)


def test_puzzles_go_through_the_backbone_tile_by_tile() -> None:
    for made, data in ((pirl().eval(), batch(16, 16)), (infomin().eval(), batch(16, 16, 16))):
        encoder = made.encoder if isinstance(made, PIRL) else made.contrast.query
        puzzle = made.anchors(data)[1]
        found = made.embed(made.anchors(data), MAIN)[1]
        for i in range(BATCH):
            rows = [encoder.features(tile[None])[0] for tile in tiles.cut(puzzle[i : i + 1], 2)]
            each = torch.cat([made.puzzle_head.each(row) for row in rows])
            expected = F.normalize(made.puzzle_head.joined(each), dim=0)
            torch.testing.assert_close(found[i], expected)


def test_pirls_memory_follows_the_image_branch() -> None:
    made = pirl(bank_momentum=0.0)
    data = batch(16, 16)
    embedding = made.embed(made.anchors(data), MAIN).detach()
    made.commit(data, embedding, made.pseudo_labels(data, None))
    torch.testing.assert_close(made.bank.rows[data.index], embedding[0])
