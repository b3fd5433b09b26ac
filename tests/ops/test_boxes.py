"""Cut-mix boxes against the written rule, its simulated statistics, and a pixel loop."""

from __future__ import annotations

import math

import pytest
import torch

from hexa.ops.boxes import cut_boxes, draw_beta, kept_share, paste


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_clipped_boxes() -> None:
    """F15: cut = ⌊S√(1−λ0)⌋, half = ⌊cut/2⌋, clipped around a uniform centre."""
    shares = torch.linspace(0, 1, 50, dtype=torch.float64)
    boxes = cut_boxes(shares, 32, False, generator())
    centres = torch.rand(50, 2, generator=generator(), dtype=torch.float64)
    drawn = zip(shares.tolist(), boxes.tolist(), centres.tolist(), strict=True)
    for share, (top, bottom, left, right), (y, x) in drawn:
        cut = int(32 * math.sqrt(1 - share))
        half = cut // 2
        cy = int(y * 32)
        cx = int(x * 32)
        assert top == max(cy - half, 0)
        assert bottom == min(cy + half, 32)
        assert left == max(cx - half, 0)
        assert right == min(cx + half, 32)


@pytest.mark.parametrize(
    ("size", "mean", "std"),
    [
        (224, 0.740, 0.122),
        (32, 0.759, 0.118),
        (96, 0.746, None),
    ],
)
def test_clipped_box_share(size: int, mean: float, std: float | None) -> None:
    """The simulated moments of F15 for Beta(5, 3)."""
    draw = generator(1)
    shares = draw_beta(5, 3, 60_000, draw)
    boxes = cut_boxes(shares, size, False, draw)
    kept = kept_share(boxes, size)
    assert float(kept.mean()) == pytest.approx(mean, abs=0.003)
    if std is not None:
        assert float(kept.std()) == pytest.approx(std, abs=0.003)


def test_inside_box_share() -> None:
    """Boxes inside the image have the drawn share."""
    draw = generator(2)
    shares = draw_beta(5, 3, 60_000, draw)
    boxes = cut_boxes(shares, 224, True, draw)
    assert int(boxes.min()) >= 0
    assert int(boxes.max()) <= 224
    kept = kept_share(boxes, 224)
    assert float(kept.mean()) == pytest.approx(0.625, abs=0.006)
    difference = (kept - shares).abs()
    assert float(difference.max()) < 2 / 224
    # every corner is possible, the last included
    assert int(boxes[:, 1].max()) == 224


@pytest.mark.parametrize("per_sample", [False, True])
def test_paste_pixel_loop(per_sample: bool) -> None:
    images = torch.rand(5, 3, 6, 6, generator=generator())
    images = images.to(memory_format=torch.channels_last)
    permutation = torch.tensor([1, 2, 0, 4, 3])
    count = 5 if per_sample else 1
    shares = torch.full((count,), 0.5)
    boxes = cut_boxes(shares, 6, False, generator(5))
    mixed = paste(images, permutation, boxes)
    for i in range(5):
        top, bottom, left, right = boxes[i if per_sample else 0].tolist()
        for y in range(6):
            for x in range(6):
                pasted = top <= y < bottom and left <= x < right
                source = permutation[i] if pasted else i
                assert torch.equal(mixed[i, :, y, x], images[source, :, y, x])
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(mixed, images)
