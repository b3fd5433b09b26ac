"""Examples against a dense matrix of each view's share of each image, and the source of the
gradient."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hexa.core import MAIN, Branch, Example, PseudoLabels, Score
from hexa.core.batch import Index
from tests.laws.cases import Case

V = 2
B = 5


@dataclass(frozen=True, eq=False)
class Image(PseudoLabels):
    """The number of each image is its label."""

    number: Tensor

    def __getitem__(self, index: Index) -> Image:
        return Image(self.number[index])


@pytest.fixture
def score() -> Score:
    return Score(Case("simclr").build())


def shares(example: Example) -> Tensor:
    """Return [V, B, B]: the share of each image in the pseudo-label of a view."""
    total = torch.zeros(V, B, B)
    for labels, weight in example.mixture:
        for image, number in enumerate(labels.number):
            total[:, image, number] += weight[:, image]
    return total


def test_nested_mixture_shares(score: Score) -> None:
    """A mixture of mixtures has the shares of its pixels."""
    crops = tuple(torch.zeros(B, 3, 4, 4) for _ in range(V))
    example = Example(crops, ((Image(torch.arange(B)), torch.ones(V, B)),), score)
    expected = torch.eye(B).expand(V, B, B)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        permutation = torch.randperm(B, generator=generator)
        kept = torch.rand(V, B, generator=generator)
        example = example.mixed(crops, permutation, kept)
        expected = kept[..., None] * expected + (1 - kept[..., None]) * expected[:, permutation]
    torch.testing.assert_close(shares(example), expected)
    torch.testing.assert_close(shares(example).sum(2), torch.ones(V, B))
    order = torch.tensor([3, 0, 4])
    for (labels, weight), (whole, all_weights) in zip(
        example.select(order).mixture, example.mixture, strict=True
    ):
        assert torch.equal(labels.number, whole.number[order])
        assert torch.equal(weight, all_weights[:, order])


@pytest.mark.parametrize("branch", [Branch("aux"), Branch("main", training=False)], ids=str)
def test_shared_gradient_pass(
    score: Score, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared gradient equals that of the pass that kept it."""
    left = (torch.ones(B, 3, 4, 4),)
    example = Example(
        left, ((Image(torch.arange(B)), torch.ones(1, B)),), score, shared_gradient=left
    )
    monkeypatch.setattr(Score, "gradient", lambda self, example, branch: branch)
    assert example.gradient() is left
    assert example.gradient(Branch("main", update=False)) is left
    assert example.gradient(branch) == branch
    for other in (example.at(left), example.mixed(left, torch.arange(B), torch.ones(1, B))):
        assert other.gradient() == MAIN
    silent = example.mixed(
        left, torch.arange(B), torch.ones(1, B), "mixed", update_statistics=False
    )
    assert silent.branch == Branch("mixed", update=False)
    found = example.select(slice(2)).gradient()[0].shape
    assert found == (2, 3, 4, 4)
    assert torch.equal(example.select(crops=1).gradient()[0], left[0])
