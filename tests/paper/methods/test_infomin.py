"""InfoMin's two terms against a loop (Tian et al., 2020; the published code's loss)."""

from __future__ import annotations

import pytest
import torch

from hexa.core.batch import MAIN
from hexa_paper.methods.infomin import InfoMin, InfoMinConfig
from tests.methods.setting import BATCH, batch, small


def infomin(**fields: object) -> InfoMin:
    contrast = {"queue_size": 16, "dim": 6, "temperature": 0.15}
    return small(
        InfoMinConfig.model_validate({"contrast": contrast, "puzzle": {"grid": 2}, **fields}),
        num_crops=3,
    )


def test_infomin_terms() -> None:
    """Two terms recognise one key from a view and from a puzzle."""
    made = infomin(puzzle_weight=0.2)
    data = batch(16, 16, 16)
    anchors = made.anchors(data)
    assert torch.equal(anchors[0], data.crops[0])
    assert anchors[1].shape == (BATCH, 3, 12, 12), "2 × 2 tiles of 6 of 8 pixels"
    embedding = made.embed(anchors, MAIN)
    labels = made.pseudo_labels(data, None)
    losses = made.loss(embedding, labels)
    total = 0.0
    for i in range(BATCH):
        key = made.contrast.pseudo_labels(data, None).keys[0, i]
        for v, share in enumerate((0.8, 0.2)):
            logits = (
                torch.cat([(key @ embedding[v, i])[None], made.contrast.queue @ embedding[v, i]])
                / 0.15
            )
            term = -torch.log_softmax(logits, 0)[0]
            torch.testing.assert_close(losses[v, i], 2 * share * term)
            total += share * float(term.detach()) / BATCH
    assert float(losses.detach().mean()) == pytest.approx(total), (
        "the mean over crops and images is the published loss"
    )


def test_infomin_queue() -> None:
    """The queue takes every key once."""
    made = infomin()
    data = batch(16, 16, 16)
    labels = made.pseudo_labels(data, None)
    made.commit(data, None, labels)
    torch.testing.assert_close(made.contrast.queue[:BATCH], labels.keys[0])
    assert int(made.contrast.queue_pointer) == BATCH % 16
