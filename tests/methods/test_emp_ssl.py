"""EMP-SSL against its published loss written out, and against lightly; the coding rate against its eigenvalues."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hexa.core import MAIN
from hexa.methods.emp_ssl import EMPSSL, EMPSSLConfig, MeanCrops
from hexa.nn.encoder import unit
from hexa.ops.coding_rate import coding_rate, largest_rate
from tests.methods.setting import BATCH, batch, small
from tests.ops.test_contrastive import unit as rows


def emp_ssl(**fields: object) -> EMPSSL:
    return small(EMPSSLConfig(dim=6, hidden=10, **fields), num_crops=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "width"), [(5, 3), (3, 5)])
def test_the_coding_rate_is_half_a_log_determinant(count: int, width: int) -> None:
    some = rows(2, count, width)
    covariances = [one.T @ one * width / (count * 0.2) for one in some]
    expected = [0.5 * float(torch.log1p(torch.linalg.eigvalsh(one)).sum()) for one in covariances]
    torch.testing.assert_close(coding_rate(some, 0.2), torch.tensor(expected, dtype=torch.float64))
    assert max(expected) < largest_rate(count, width, 0.2)
    assert coding_rate(some.bfloat16(), 0.2).dtype == torch.float32


def test_orthogonal_directions_have_the_largest_rate() -> None:
    for count, width in ((3, 5), (6, 3)):
        spread = torch.eye(width, dtype=torch.float64)[torch.arange(count) % width]
        assert float(coding_rate(spread, 0.3)) == pytest.approx(largest_rate(count, width, 0.3))


def published(embedding: Tensor, weight: float, distortion: float) -> Tensor:
    """−λ·mean cos(z, z̄) − mean R of the crops, as the paper has it."""
    count, width = embedding.shape[1:]
    similar = torch.cosine_similarity(
        embedding, embedding.mean(0)[None].expand_as(embedding), dim=-1
    ).mean()
    identity = torch.eye(width, dtype=embedding.dtype)
    rates = [
        0.5 * torch.logdet(identity + width / (count * distortion) * z.T @ z) for z in embedding
    ]
    return -weight * similar - torch.stack(rates).mean()


def test_the_clean_loss_is_the_published_one_but_for_a_constant() -> None:
    made, data = emp_ssl(similarity_weight=7.0, distortion=0.4), batch(12, 12, 12)
    projection = made.encoder.project(data.crops, MAIN).detach().requires_grad_()
    embedding = unit(projection)
    torch.testing.assert_close(embedding, made.embed(data.crops, MAIN))
    loss = made.clean_loss(embedding, made.pseudo_labels(data, embedding.detach()))
    assert loss.shape == (3, BATCH)
    expected = published(embedding, 7.0, 0.4)
    assert loss.mean().item() == pytest.approx(
        expected.item() + 7.0 + largest_rate(BATCH, 6, 0.4), rel=1e-9
    )
    library = pytest.importorskip("lightly.loss.emp_ssl_loss")
    # a rate is to be high
    values = (
        loss.mean(),
        expected,
        7.0 * library.invariance_loss(embedding) - library.tcr_loss(embedding, 0.4),
    )
    ours, theirs, others = (
        torch.autograd.grad(value, projection, retain_graph=True)[0] for value in values
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(others, theirs)


def test_hard_examples_have_the_clean_mean_as_label_or_their_own() -> None:
    data, changed = batch(12, 12, 12), rows(3, BATCH, 6).requires_grad_()
    query, joint = emp_ssl(), emp_ssl(adversarial_terms="joint")
    labels = query.pseudo_labels(data, rows(3, BATCH, 6).flip(1))
    assert not labels.means.requires_grad
    lacking = largest_rate(BATCH, 6, 0.2) - coding_rate(changed, 0.2)
    by_clean = 200 * (1 - (changed * labels.means).sum(-1)) + lacking[:, None]
    torch.testing.assert_close(query.loss(changed, labels), by_clean)
    torch.testing.assert_close(joint.loss(changed, labels), joint.clean_loss(changed, labels))
    order = torch.tensor([1, 0, 3, 2])
    own, other = labels.mixed(order)  # of a mixed view its own mean is no label, nor joint's
    torch.testing.assert_close(joint.loss(changed, own), by_clean)
    torch.testing.assert_close(other.means, labels.means[order])


def test_one_direction_for_all_is_chance() -> None:
    made = emp_ssl()
    same = torch.ones(3, BATCH, 6, dtype=torch.float64) / math.sqrt(6)
    assert float(made.loss(same, MeanCrops(same[0])).mean()) == pytest.approx(made.chance_loss)
    assert made.correct(rows(3, BATCH, 6), MeanCrops(rows(3, BATCH, 6)[0]))[0].all()
