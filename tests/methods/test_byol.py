"""BYOL and SimSiam against the published iterations written out, and against lightly."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from hexa.core import MAIN
from hexa.methods.byol import BYOL, BYOLConfig
from hexa.methods.simsiam import SimSiam, SimSiamConfig
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.nn.momentum import cosine_momentum
from hexa.objective import Objective
from hexa.training import optimizers
from hexa.training.optimizers import OptimizerConfig
from tests.laws.cases import backward, one_step
from tests.methods.setting import batch, small


def byol(**fields: object) -> BYOL:
    return small(BYOLConfig(dim=6, hidden=10, **fields), epochs=5)  # type: ignore[arg-type]


def simsiam(**fields: object) -> SimSiam:
    return small(SimSiamConfig(dim=10, predictor_hidden=4, **fields))  # type: ignore[arg-type]


def test_byol_loss() -> None:
    made = byol()
    data = batch(12, 12)
    online = copy.deepcopy(made.encoder)
    target = copy.deepcopy(made.target)
    projector, predictor = online.head
    predictions = [predictor(projector(online.features(crop))) for crop in data.crops]
    with torch.no_grad():
        targets = [target.head[0](target.features(crop)) for crop in data.crops]
    pairs = [(predictions[0], targets[1]), (predictions[1], targets[0])]
    expected = sum((2 - 2 * torch.cosine_similarity(p, z).mean()) for p, z in pairs)
    (part,) = backward(Objective(made), data).values()
    torch.testing.assert_close(part.loss, expected.detach())
    negative_cosine = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    torch.testing.assert_close(
        expected,
        sum(2 + 2 * negative_cosine(p, z) for p, z in pairs),
    )


def test_byol_target_momentum() -> None:
    """The target has no predictor, and follows more slowly towards the end."""
    made = byol(momentum=0.9)
    data = batch(12, 12)
    before = {name: p.clone() for name, p in made.target.named_parameters()}
    learned = [p for p in made.parameters() if p.requires_grad]
    one_step(
        Objective(made),
        torch.optim.SGD(learned, lr=0.1),
        data,
    )
    online = dict(made.encoder.named_parameters())
    for name, p in made.target.named_parameters():
        torch.testing.assert_close(
            p,
            0.9 * before[name] + 0.1 * online[name],
        )
    assert not any(name.startswith("head.1") for name in before)
    assert made.total_steps == 20
    values = [cosine_momentum(0.9, k, 20) for k in (0, 5, 10, 20, 30)]
    early = 1 - 0.1 * (math.cos(math.pi / 4) + 1) / 2
    assert values == pytest.approx([0.9, early, 0.95, 1.0, 1.0])


def test_simsiam_loss_and_gradient() -> None:
    made = simsiam()
    data = batch(12, 12)
    twin = copy.deepcopy(made)
    head = twin.encoder.head
    projections = [head.projector(twin.encoder.features(crop)) for crop in data.crops]
    predictions = [head.predictor(z) for z in projections]
    criterion = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    expected = 0.5 * (
        criterion(predictions[0], projections[1].detach())
        + criterion(predictions[1], projections[0].detach())
    )
    expected.backward()
    embedding = made.embed(made.anchors(data), MAIN)
    loss = made.clean_loss(embedding, made.pseudo_labels(data, embedding)).mean()
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for (name, p), (_, q) in zip(made.named_parameters(), twin.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)


def test_simsiam_projector_batch_norm() -> None:
    """The projector ends in a batch-norm without learned parameters."""
    layers = simsiam(projector_layers=2).encoder.head.projector  # type: ignore[union-attr]
    norms = [layer for layer in layers if isinstance(layer, BranchBatchNorm)]
    assert [norm.weight.requires_grad for norm in norms] == [True, False]
    assert [norm.bias.requires_grad for norm in norms] == [True, False]


def test_simsiam_predictor_rate() -> None:
    """The predictor keeps its rate."""
    made = simsiam()
    optimizer = optimizers.build(
        made.parameters(), OptimizerConfig(learning_rate=0.1), 4, made.unscheduled()
    )
    fixed = {
        id(p) for group in optimizer.param_groups if not group["scheduled"] for p in group["params"]
    }
    expected = {id(p) for p in made.encoder.head.predictor.parameters()}
    assert fixed == expected  # type: ignore[union-attr]
    free = simsiam(constant_predictor_rate=False)
    groups = optimizers.build(
        free.parameters(), OptimizerConfig(), 4, free.unscheduled()
    ).param_groups
    assert [group["scheduled"] for group in groups] == [True]


def test_byol_simsiam_single_view() -> None:
    """A single large view predicts the other one."""
    for made in (byol(), simsiam()):
        data = batch(16, 12)
        embedding = made.embed(data.crops, MAIN)
        labels = made.pseudo_labels(data, embedding.detach())
        whole = made.loss(embedding, labels)
        alone = made.loss(embedding[:1], labels)
        torch.testing.assert_close(
            alone / alone.sum(),
            (whole[:1] / whole[:1].sum()).reshape(1, 4),
        )
        found = made.correct(embedding[:1], labels)
        expected = made.correct(embedding, labels)[:1]
        torch.testing.assert_close(found, expected)
