"""Mixup against images mixed one by one."""

from __future__ import annotations

import pytest
import torch

from hexa.core import Example
from hexa.hard_examples.mixup import Mixup
from hexa.objective import STD
from hexa.ops import draws
from hexa.runtime.random import Stream
from tests.laws.cases import BATCH, Case

STREAM = Stream(3)


def clean_example() -> Example:
    return Case("deepcluster-v2", {"bn_groups": 1}).examples()[STD]


@pytest.mark.parametrize("per_sample", [False, True])
def test_mixup_views(per_sample: bool) -> None:
    """Mixup returns weighted means of two images."""
    clean = clean_example()
    made = Mixup(per_sample=per_sample)(clean, STREAM)
    order = draws.partners(BATCH, STREAM)
    weight = made.mixture[0][1]
    for v, crop in enumerate(clean.crops):
        for i in range(BATCH):
            share = float(weight[v, i])
            expected = share * crop[i] + (1 - share) * crop[order[i]]
            torch.testing.assert_close(made.crops[v][i], expected, atol=1e-6, rtol=0)
    assert (len(set(weight[0].tolist())) > 1) == per_sample
    assert weight[0, 0] != weight[1, 0]  # each crop has a share of its own
