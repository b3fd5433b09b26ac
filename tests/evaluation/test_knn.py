"""The vote of the neighbours against a loop over images (F22)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hexa.evaluation.protocols import knn
from hexa.evaluation.protocols.knn import knn_classify


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of four classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    fixed = torch.Generator().manual_seed(99)
    centres = torch.randn(4, 6, generator=fixed)
    noise = torch.randn(count, 6, generator=generator)
    return centres[labels] + 1.5 * noise, labels


def by_hand(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, k: int, temperature: float, classes: int
) -> list[list[float]]:
    """Shares of the vote, image by image, in plain Python."""
    shares = []
    for query in queries.double():
        cosines = []
        for feature, label in zip(bank.double(), bank_labels.tolist(), strict=True):
            pairs = zip(query.tolist(), feature.tolist(), strict=True)
            product = sum(a * b for a, b in pairs)
            lengths = float(query.norm() * feature.norm())
            cosines.append((product / lengths, label))
        votes = [0.0] * classes
        for cosine, label in sorted(cosines, reverse=True)[:k]:
            votes[label] += math.exp(cosine / temperature)
        total = sum(votes)
        shares.append([vote / total for vote in votes])
    return shares


@pytest.mark.parametrize(
    ("k", "temperature"),
    [
        (1, 0.07),
        (7, 0.07),
        (7, 0.5),
        (40, 0.1),
        (500, 0.1),
    ],
)
def test_knn_vote_loop(k: int, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of the vote, in chunks of four queries."""
    monkeypatch.setattr(knn, "_SIMILARITIES", 4 * 40)
    bank, bank_labels = draw(40, 0)
    queries, _ = draw(9, 1)
    scores = knn_classify(
        bank, bank_labels, queries, k, temperature, num_classes=5
    )  # one without training images
    shares = by_hand(bank, bank_labels, queries, min(k, 40), temperature, 5)
    expected = torch.tensor(shares)
    found = scores / scores.sum(1, keepdim=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_knn_cold_vote() -> None:
    """exp(s / T) leaves the range of fp32 at both ends; the ranking must not."""
    bank, bank_labels = draw(40, 0)
    queries, _ = draw(30, 1)
    cold = knn_classify(bank, bank_labels, queries, 10, temperature=1e-4)
    nearest = knn_classify(bank, bank_labels, queries, 1)
    assert torch.equal(cold.argmax(1), nearest.argmax(1))
