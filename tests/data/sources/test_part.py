"""A part of a source: the same images whoever asks, even over the classes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from hexa.data import ArraySource, draw_part, open_source
from hexa.data.sources.source import Subset
from tests.evaluation.given import noise_images


def source_of(counts: list[int]) -> ArraySource:
    """Images of classes of these sizes, in a mixed order."""
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(counts)), counts))
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    return ArraySource(images, labels.astype(np.int64))


def rows_of(part: object) -> list[int]:
    assert isinstance(part, Subset)
    return part.rows.tolist()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (6, [2, 2, 2]),
        (9, [3, 3, 3]),
        (30, [13, 14, 3]),
        (31, [14, 14, 3]),
        (60, [40, 17, 3]),
    ],
)
def test_part_class_balance(count: int, expected: list[int]) -> None:
    """Classes have equal numbers until they are used up."""
    part = draw_part(source_of([80, 17, 3]), count, 0)
    assert part.classes is not None
    found = np.bincount(part.classes)
    assert found.sum() == count
    # which class has one more is drawn
    assert np.abs(found - expected).max() <= 1
    assert rows_of(part) == sorted(rows_of(part))


def test_nested_parts_and_seeds() -> None:
    """A smaller part is within a larger one, and seeds differ."""
    source = source_of([80, 17, 3])
    parts = [set(rows_of(draw_part(source, count, 0))) for count in (5, 20, 21, 70)]
    assert all(small < large for small, large in itertools.pairwise(parts))
    found = rows_of(draw_part(source, 20, 0))
    expected = rows_of(draw_part(source, 20, 0))
    assert found == expected
    assert rows_of(draw_part(source, 20, 0)) != rows_of(draw_part(source, 20, 1))


def test_unlabelled_part_probabilities() -> None:
    """Without labels all images are equally likely."""
    source = source_of([80, 20])
    source.labels = None
    drawn = np.zeros(100)
    for seed in range(400):
        drawn[rows_of(draw_part(source, 10, seed))] += 1
    assert drawn.sum() == 4000
    # 40 ± 6 each
    assert drawn.min() > 15
    assert drawn.max() < 65


def test_part_images(tmp_path: Path) -> None:
    """An image of a part is that of the source."""
    names = [f"{name}/{number}.png" for name in ("ant", "bee") for number in range(10)]
    source = open_source(noise_images(tmp_path, dict.fromkeys(names, (6, 5))))
    part = draw_part(source, 7, 0)
    for row, path in enumerate(part.paths):
        place = source.paths.index(path)
        assert torch.equal(part.decode(row), source.decode(place))
        assert part.encoded(row) == source.encoded(place)
    found = [Path(file).relative_to(tmp_path).as_posix() for file in part.files()]
    assert found == part.paths
    assert part.facts["drawn"] == {
        "images": 7,
        "of": 20,
        "seed": 0,
    }
    assert part.fingerprint != draw_part(source, 7, 1).fingerprint
    assert "7 of the 20 images" in part.notes()[0]
    assert "evenly from its classes (seed 0)" in part.notes()[0]
