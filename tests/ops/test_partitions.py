"""Measures of partitions against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from hexa.ops.partitions import entropy_share, mutual_information


@pytest.mark.parametrize("seed", range(4))
def test_mutual_information_scikit_learn(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, 7, (200,), generator=generator)
    second = torch.where(
        torch.rand(200, generator=generator) < 0.5,
        first * 3,
        torch.randint(0, 40, (200,), generator=generator),
    )
    expected = normalized_mutual_info_score(first, second)
    assert mutual_information(first, second) == pytest.approx(expected, abs=1e-12)
    with_unseen = (
        torch.cat([first, torch.tensor([-100, 3])]).int(),
        torch.cat([second, torch.tensor([1, -100])]),
    )
    assert mutual_information(*with_unseen) == pytest.approx(expected, abs=1e-12)


def test_partition_extremes() -> None:
    same = torch.tensor([0, 0, 1, 2])
    assert mutual_information(same, same) == pytest.approx(1)
    assert mutual_information(torch.zeros(4), torch.zeros(4)) == 1
    found = mutual_information(same, torch.full((4,), -100))
    assert found == 0
    assert entropy_share(torch.tensor([5, 5, 5])) == pytest.approx(1)
    assert entropy_share(torch.tensor([9, 0, 0])) == 0
