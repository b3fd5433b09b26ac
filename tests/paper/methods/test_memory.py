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
    config = InstDiscConfig(dim=6, temperature=TAU, num_negatives=5, **fields)  # type: ignore[arg-type]
    return small(config, 1)


def pirl(**fields: object) -> PIRL:
    fields = {"dim": 6, "temperature": TAU, "num_negatives": 5, "puzzle": {"grid": 2}, **fields}
    return small(PIRLConfig.model_validate(fields))


def naive_nce(query: Tensor, own: Tensor, others: Tensor, z: float) -> Tensor:
    """Posterior by posterior, each with the constant of the noise."""
    noise = len(others) / DATA

    def posterior(memory: Tensor) -> Tensor:
        p = torch.exp(memory @ query / TAU) / z
        return p / (p + noise)

    wrong = sum(torch.log(1 - posterior(other)) for other in others)
    return -torch.log(posterior(own)) - wrong


def test_instdisc_nce() -> None:
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


def test_instdisc_softmax() -> None:
    """The softmax is over all images."""
    made = instdisc(objective="softmax")
    data = batch(12)
    embedding = made.embed(made.anchors(data), MAIN)
    labels = made.pseudo_labels(data, None)
    found = made.loss(embedding, labels)
    scores = embedding[0] @ made.bank.rows.T
    expected = F.cross_entropy(scores / TAU, data.index, reduction="none")
    torch.testing.assert_close(found[0], expected)
    assert made.chance_loss == pytest.approx(math.log(DATA))
    hits = scores.argmax(1) == data.index
    correct = made.correct(embedding, labels)
    assert torch.equal(correct[0], hits)


def test_instdisc_memory_momentum() -> None:
    """The memory follows clean embeddings by momentum."""
    made = instdisc(bank_momentum=0.3)
    data = batch(12)
    before = made.bank.rows.clone()
    embedding = made.embed(made.anchors(data), MAIN).detach()
    made.commit(data, embedding, made.pseudo_labels(data, None))
    for i, image in enumerate(data.index):
        mean = 0.3 * before[image] + 0.7 * embedding[0, i]
        expected = F.normalize(mean, dim=0)
        torch.testing.assert_close(made.bank.rows[image], expected)
    others = [i for i in range(DATA) if i not in data.index.tolist()]
    assert torch.equal(made.bank.rows[others], before[others])


def test_memory_partition() -> None:
    """Z is the mean over random directions."""
    memory = Memory(InstDiscConfig(dim=64), 4096, seed=3, drawn=True)
    generator = Stream(1).generator()
    directions = torch.randn(200, 64, generator=generator, dtype=torch.float64)
    queries = F.normalize(directions)
    cosines = queries @ memory.rows.double().T
    sampled = 4096 * torch.exp(cosines / 0.07).mean()
    assert memory.partition == pytest.approx(float(sampled), rel=0.02)


def test_pirl_terms() -> None:
    """Two terms: an image, and a puzzle of the other view."""
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
            own = made.bank.rows[data.index[i]]
            expected = naive_nce(embedding[v, i], own, labels.others, made.bank.partition)
            torch.testing.assert_close(losses[v, i], 2 * share * expected)
    torch.testing.assert_close(made.loss(embedding[:1], labels), losses[:1] / 2)


def test_puzzle_tile_features() -> None:
    """Puzzles go through the backbone tile by tile."""
    cases = (
        (pirl().eval(), batch(16, 16)),
        (infomin().eval(), batch(16, 16, 16)),
    )
    for made, data in cases:
        encoder = made.encoder if isinstance(made, PIRL) else made.contrast.query
        head = made.puzzle_head
        anchors = made.anchors(data)
        puzzle = anchors[1]
        found = made.embed(anchors, MAIN)[1]
        for i in range(BATCH):
            each = []
            for tile in tiles.cut(puzzle[i : i + 1], 2):
                features = encoder.features(tile[None])[0]
                each.append(head.each(features))
            expected = F.normalize(head.joined(torch.cat(each)), dim=0)
            torch.testing.assert_close(found[i], expected)


def test_pirl_memory() -> None:
    """The memory follows the image branch."""
    made = pirl(bank_momentum=0.0)
    data = batch(16, 16)
    embedding = made.embed(made.anchors(data), MAIN).detach()
    made.commit(data, embedding, made.pseudo_labels(data, None))
    torch.testing.assert_close(made.bank.rows[data.index], embedding[0])
