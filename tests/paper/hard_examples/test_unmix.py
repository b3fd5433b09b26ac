"""Un-Mix against images mixed one by one."""

from __future__ import annotations

import pytest
import torch

from hexa.core import Example
from hexa.objective import STD
from hexa.runtime.random import Stream
from hexa_paper.hard_examples.unmix import UnMix
from tests.laws.cases import BATCH, Case

STREAM = Stream(3)


def clean_example() -> Example:
    return Case("deepcluster-v2", {"bn_groups": 1}).examples()[STD]


@pytest.mark.parametrize("box", [0.0, 1.0])
def test_unmix_views_and_weights(box: float) -> None:
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


def test_unmix_box_probability() -> None:
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
