"""DINO against the published iteration written out, and against lightly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.core import MAIN, Branch, Setting
from hexa.methods.dino import DINO, DINOConfig
from hexa.nn.backbones import build
from hexa.run.build import branch_notes
from tests.evaluation.test_dense import VIT
from tests.methods.setting import BATCH, DATA, batch, small

SIZES = (12, 12, 8)
K = 7


def method(**fields: object) -> DINO:
    return small(
        DINOConfig(num_prototypes=K, hidden=10, bottleneck=6, **fields),
        3,
        epochs=5,
    )


def scores(rows: Tensor, weight: Tensor) -> Tensor:
    return rows @ (weight / weight.norm(dim=1, keepdim=True)).T


def test_dino_loss() -> None:
    made = method(warmup_epochs=0, freeze_prototypes_epochs=0)
    data = batch(*SIZES)
    embedding = made.embed(data.crops, MAIN)
    student = scores(embedding, made.prototypes.weight)
    labels = made.pseudo_labels(data, embedding)
    with torch.no_grad():
        teacher = scores(
            made.teacher.embed(data.crops[:2], MAIN),
            made.teacher_prototypes.weight,
        )
    dino_loss = pytest.importorskip("lightly.loss").DINOLoss
    criterion = dino_loss(
        output_dim=K, teacher_temp=0.07, warmup_teacher_temp_epochs=0, student_temp=0.1
    ).double()
    found = made.loss(embedding, labels).mean()
    expected = criterion(list(teacher), list(student), epoch=0)
    torch.testing.assert_close(found, expected)


def test_dino_centre() -> None:
    """The centre follows the teacher's mean score."""
    made = method(center_momentum=0.8)
    data = batch(*SIZES)
    with torch.no_grad():
        teacher = scores(made.teacher.embed(data.crops[:2], MAIN), made.teacher_prototypes.weight)
    made.commit(data, None, made.pseudo_labels(data, None))
    torch.testing.assert_close(made.center, 0.2 * teacher.mean((0, 1)))
    later = made.pseudo_labels(batch(*SIZES), None)
    with torch.no_grad():
        again = scores(made.teacher.embed(data.crops[:2], MAIN), made.teacher_prototypes.weight)
    expected = F.softmax((again - made.center) / 0.04, -1)
    torch.testing.assert_close(later.classes, expected)


def test_dino_teacher_temperature() -> None:
    """The teacher's temperature rises in equal steps."""
    made = method(warmup_epochs=4)
    found = [made._teacher_temperature(epoch * (DATA // BATCH)) for epoch in range(5)]
    assert found == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.07])
    assert method(warmup_epochs=0)._teacher_temperature(0) == 0.07


def test_dino_prototype_freeze() -> None:
    """Prototypes are frozen for an epoch and have unit rows."""
    made = method()
    for step, learns in ((0, False), (DATA // BATCH, True)):
        data = batch(*SIZES, step=step)
        embedding = made.embed(data.crops, MAIN)
        made.zero_grad()
        made.loss(embedding, made.pseudo_labels(data, embedding)).mean().backward()
        assert (made.prototypes.weight.grad is not None) == learns
    with torch.no_grad():
        before = made.loss(embedding, made.pseudo_labels(data, embedding))
        made.prototypes.weight.mul_(3)
    torch.testing.assert_close(made.loss(embedding, made.pseudo_labels(data, embedding)), before)


def test_dino_teacher_momentum() -> None:
    """The teacher and its prototypes follow."""
    made = method(momentum=0.9)
    data = batch(*SIZES)
    before = made.teacher_prototypes.weight.clone()
    with torch.no_grad():
        made.prototypes.weight.add_(1)
    made.commit(data, None, made.pseudo_labels(data, None))
    torch.testing.assert_close(made.teacher_prototypes.weight, before + 0.1)
    assert made.chance_loss == pytest.approx(math.log(K))


def test_dino_vit_branches() -> None:
    """A ViT accepts crops of two sizes, and all its branches are the same."""
    network = build(VIT)
    setting = Setting(DATA, BATCH, num_crops=3, branches=("main", "aux"))
    made = DINOConfig(num_prototypes=K, hidden=10, bottleneck=6).build(network, setting)
    crops = tuple(crop.float() for crop in batch(32, 32, 16).crops)
    main = made.embed(crops, MAIN)
    aux = made.embed(crops, Branch("aux"))
    assert torch.equal(main, aux.reshape(3, BATCH, 6))
    (note,) = branch_notes(made, setting)
    assert "aux" in note
    assert branch_notes(method(), setting) == []
