"""Neighbourhoods that survive, against a loop; near-duplicates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hexa.comparison import leakage, unlabelled

DRAW = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=DRAW)


def test_neighbourhood_overlap_loop() -> None:
    """Kept neighbourhoods are those of a loop."""
    a = normal(40, 5)
    b = normal(40, 5)
    near = []
    for features in (a, b):
        x = (features - features.mean(0)).numpy()
        lengths = np.linalg.norm(x, axis=1)
        neighbours = []
        for image in range(40):
            ranked = np.argsort(-(x @ x[image]) / lengths).tolist()
            ranked.remove(image)
            neighbours.append(set(ranked[:10]))
        near.append(neighbours)
    shared = [len(one & other) / 10 for one, other in zip(*near, strict=True)]
    found = unlabelled.kept(a, b).tolist()
    assert found == pytest.approx(shared)
    rows = torch.tensor([7, 3])
    of_rows = unlabelled.kept(a, b, rows=rows).tolist()
    assert of_rows == pytest.approx([shared[7], shared[3]])
    assert unlabelled.kept(a, 3 * a).eq(1).all()


def test_thumbnail_near_duplicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Near-duplicates survive a change of brightness and size, but not of content."""
    pictures = torch.rand(6, 16, 16, generator=DRAW)
    twin = 0.5 * pictures[2] + 0.2 + 0.002 * normal(16, 16)
    thumbs = leakage.standardised(torch.cat([pictures, twin[None]]).flatten(1))
    found = leakage.duplicates(thumbs).tolist()
    expected = [-1] * 6 + [2]
    assert found == expected
    later = leakage.duplicates(thumbs[:3], thumbs[3:])
    assert later.tolist() == [-1, -1, 3]
    none = leakage.duplicates(thumbs[:2], thumbs[:0])
    assert none.tolist() == [-1, -1]
    monkeypatch.setattr(leakage, "_CHUNK", 2)
    kinds = torch.tensor([1, 0, 1, 0])
    of_class = leakage.duplicates(thumbs[[2, 2, 6, 2]], labels=kinds)
    assert of_class.tolist() == [-1, -1, 0, 1]
    in_chunks = leakage.duplicates(thumbs)
    assert in_chunks.tolist() == expected
    earlier = leakage.duplicates(thumbs[5:], thumbs[:5])
    assert earlier.tolist() == [-1, 2]
