"""Mixup and Un-Mix against images mixed one by one."""

from __future__ import annotations

import pytest
import torch

from hexa.core import Example
from hexa.hard_examples.mixup import Mixup
from hexa.hard_examples.unmix import UnMix
from hexa.objective import STD
from hexa.ops import draws
from hexa.runtime.random import Stream
from tests.laws.cases import BATCH, Case

STREAM = Stream(3)


def clean_example() -> Example:
    return Case("deepcluster-v2", {"bn_groups": 1}).examples()[STD]


@pytest.mark.parametrize("per_sample", [False, True])
def test_mixup_lays_two_images_over_each_other(per_sample: bool) -> None:
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


@pytest.mark.parametrize("box", [0.0, 1.0])
def test_unmix_mixes_the_batch_with_itself_in_reverse(box: float) -> None:
    clean = clean_example()
    made = UnMix(box_probability=box)(clean, STREAM)
    for v, crop in enumerate(clean.crops):
        share = float(made.mixture[0][1][v, 0])
        assert bool((made.mixture[0][1][v] == share).all())
        for i in range(BATCH):
            own = crop[i]
            other = crop[BATCH - 1 - i]
            if box:
                kept = (made.crops[v][i] == own).all(0)
                assert torch.equal(made.crops[v][i][:, ~kept], other[:, ~kept])
                assert float(kept.double().mean()) == pytest.approx(
                    share, abs=0.02
                )  # saturated pixels may agree
            else:
                torch.testing.assert_close(
                    made.crops[v][i], share * own + (1 - share) * other, atol=1e-6, rtol=0
                )


def test_unmix_chooses_between_images_and_boxes_as_often_as_asked() -> None:
    clean = clean_example()
    maker = UnMix(box_probability=0.25)
    boxed = 0
    for step in range(80):
        boxed += int(
            bool(
                (maker(clean, STREAM.child(step)).crops[0] == clean.crops[0]).all(1).double().mean()
                > 0.2
            )
        )
    assert 8 <= boxed <= 32
