"""Strong augmentation: the operations of views, a grey square, unchanged pseudo-labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hexa.config import UserError
from hexa.core import Example
from hexa.hard_examples.randaugment import RandAugment
from hexa.objective import STD
from hexa.ops import randaugment
from hexa.runtime.random import Stream
from tests.laws.cases import Case


def clean() -> Example:
    return Case("moco", {"bn_groups": 1}).examples()[STD]


def test_randaugment_operation_magnitudes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operations are those of views, at a uniform magnitude."""
    source = clean()
    stream = Stream(3)
    crop = source.crops[0].float()
    numbers = torch.rand(
        len(crop),
        8,
        generator=stream.child(0).generator(),
    )
    expected = crop.clone()
    for part in (numbers[:, :4], numbers[:, 4:]):
        for i in range(len(crop)):
            plan = randaugment.plan(part[i : i + 1], None, 0.0)
            if len(plan.rows):
                expected[i : i + 1] = randaugment.apply(expected[i : i + 1], plan)
    made = RandAugment(cutout=0)(source, stream)
    torch.testing.assert_close(made.crops[0].float(), expected)
    assert made.mixture == source.mixture
    assert made.branch == source.branch
    assert (made.crops[0] != source.crops[0]).flatten(1).any(1).sum() > 1
    magnitudes = torch.linspace(0, 0.99, 12)
    drawn = torch.stack([torch.tensor([0.0, 8.5 / 15, u, 0.9]) for u in magnitudes])
    found = randaugment.plan(drawn, None, 0.0).signed
    assert found.tolist() == pytest.approx(magnitudes.tolist())


def test_cutout_square() -> None:
    """A grey square of up to half the side, at any place."""
    source = clean()
    size = source.crops[0].shape[-1]
    for view, crop in zip(
        RandAugment(operations=0)(source, Stream(1)).crops, source.crops, strict=True
    ):
        for made, before in zip(view, crop, strict=True):
            filled = ((made - randaugment.FILL).abs() < 1e-6).all(0)
            rows = filled.any(1).nonzero()
            columns = filled.any(0).nonzero()
            high = int(rows.max() - rows.min()) + 1
            wide = int(columns.max() - columns.min()) + 1
            assert size // 4 <= min(high, wide) <= max(high, wide) <= size // 2
            assert int(filled.sum()) == high * wide
            assert torch.equal(made[:, ~filled], before[:, ~filled])


def test_randaugment_grey_images() -> None:
    source = clean()
    grey = replace(
        source,
        crops=tuple(crop[:, :1] for crop in source.crops),
    )
    with pytest.raises(UserError, match="RGB images, but these have 1 channels"):
        RandAugment()(grey, Stream(0))
