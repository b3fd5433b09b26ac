"""CMC against loops over images: lightness among memories of colour, and the reverse (F29)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.core import MAIN, Batch
from hexa_paper.methods.cmc import CMC, CMCConfig
from tests.methods.setting import BATCH, DATA, batch, small
from tests.paper.methods.test_memory import TAU, naive_nce


def cmc(**fields: object) -> CMC:
    known = {"dim": 6, "temperature": TAU, "num_negatives": 5}
    config = CMCConfig.model_validate({**known, **fields})
    return small(config, 1, streams="lab")


def halves(made: CMC, data: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The embedding, and its two unit vectors."""
    embedding = made.embed(made.anchors(data), MAIN)
    lightness = embedding[0, :, :6]
    colour = embedding[0, :, 6:]
    for part in (lightness, colour):
        found = part.norm(dim=1)
        expected = torch.ones(BATCH, dtype=torch.float64)
        torch.testing.assert_close(found, expected)
    return embedding, lightness, colour


def test_cmc_nce() -> None:
    """NCE is between a stream and the memory of the other."""
    made = cmc()
    data = batch(12)
    embedding, lightness, colour = halves(made, data)
    labels = made.pseudo_labels(data, None)
    found = made.loss(embedding, labels)

    for i, image in enumerate(data.index):
        own_colour = made.colour.rows[image]
        other_colours = labels.lightness.others
        light = naive_nce(lightness[i], own_colour, other_colours, made.colour.partition)
        own_lightness = made.lightness.rows[image]
        other_lightness = labels.colour.others
        tone = naive_nce(colour[i], own_lightness, other_lightness, made.lightness.partition)
        torch.testing.assert_close(found[0, i], light + tone)
    assert found.shape == (1, BATCH)


def test_cmc_softmax() -> None:
    """The softmax is over all images of the other stream."""
    made = cmc(objective="softmax")
    data = batch(12)
    embedding, lightness, colour = halves(made, data)
    labels = made.pseudo_labels(data, None)
    of_colour = lightness @ made.colour.rows.T / TAU
    of_lightness = colour @ made.lightness.rows.T / TAU
    first = F.cross_entropy(of_colour, data.index, reduction="none")
    second = F.cross_entropy(of_lightness, data.index, reduction="none")
    loss = made.loss(embedding, labels)
    torch.testing.assert_close(loss[0], first + second)
    assert made.chance_loss == pytest.approx(2 * math.log(DATA))
    first_hits = of_colour.argmax(1) == data.index
    second_hits = of_lightness.argmax(1) == data.index
    correct = made.correct(embedding, labels)
    assert torch.equal(correct[0], first_hits & second_hits)


def test_cmc_memories() -> None:
    """Both memories begin apart and follow their own stream."""
    made = cmc(bank_momentum=0.3)
    data = batch(12)
    cosines = (made.lightness.rows * made.colour.rows).sum(1)
    assert cosines.mean().abs() < 0.5
    before = made.lightness.rows.clone(), made.colour.rows.clone()
    embedding, *streams = halves(made, data)
    made.commit(
        data,
        embedding.detach(),
        made.pseudo_labels(data, None),
    )
    for bank, old, stream in zip((made.lightness, made.colour), before, streams, strict=True):
        mean = 0.3 * old[data.index] + 0.7 * stream
        expected = F.normalize(mean, dim=1)
        torch.testing.assert_close(bank.rows[data.index], expected)
        others = [i for i in range(DATA) if i not in data.index.tolist()]
        assert torch.equal(bank.rows[others], old[others])
