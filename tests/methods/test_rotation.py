"""Rotation prediction, image by image (F29)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as tv

from hexa.core import MAIN
from hexa.methods.rotation import Rotation, RotationConfig
from tests.methods.setting import BATCH, batch, small


def rotation() -> Rotation:
    return small(RotationConfig(), 1)


def test_rotation_views_and_labels() -> None:
    """Every image is turned four ways and knows by how much."""
    made = rotation()
    data = batch(12)
    crops = made.anchors(data)
    turns = made.pseudo_labels(data, None).classes
    assert turns.shape == (4, BATCH)
    for i in range(BATCH):
        assert sorted(turns[:, i].tolist()) == [0, 1, 2, 3]
        for v in range(4):
            torch.testing.assert_close(
                crops[v][i], tv.rotate(data.crops[0][i], 90 * int(turns[v, i]))
            )
    assert len({tuple(turns[:, i].tolist()) for i in range(BATCH)}) > 1


def test_rotation_loss() -> None:
    made = rotation()
    data = batch(12)
    labels = made.pseudo_labels(data, None)
    embedding = made.embed(made.anchors(data), MAIN)
    assert embedding.shape == (4, BATCH, 4)
    for v in range(4):
        expected = F.cross_entropy(embedding[v], labels.classes[v], reduction="none")
        torch.testing.assert_close(made.loss(embedding, labels)[v], expected)
    assert made.chance_loss == pytest.approx(math.log(4))
