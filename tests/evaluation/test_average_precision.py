"""Average precision against a loop over thresholds, and against scikit-learn where the rules agree."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from hexa.evaluation.average_precision import (
    interpolated_area,
    precision_recall,
)
from hexa_paper.detection.precision import eleven_point


def areas(curve: list[tuple[float, float]]) -> tuple[float, float]:
    """(all-points interpolated, 11-point): best precision at or beyond each recall. curve: (recall, precision)."""
    area = 0.0
    before = 0.0
    for number, (recall, _) in enumerate(curve):
        area += (recall - before) * max(precision for _, precision in curve[number:])
        before = recall
    return area, sum(
        [
            max([p for r, p in curve if r >= level], default=0.0)
            for level in np.arange(0.0, 1.1, 0.1)
        ]
    ) / 11


def by_hand(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> tuple[float, float]:
    """`areas`, threshold by threshold."""
    points = []
    for threshold in sorted(set(scores.tolist()), reverse=True):
        found = scores >= threshold
        points.append(
            ((found & positive).sum() / positive.sum(), (found & positive).sum() / found.sum())
        )
    return areas(points)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_loop(seed: int, ties: bool) -> None:
    """Average precision is that of a loop, and of scikit-learn where the rules agree."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=40)
    if ties:
        scores = scores.round(0)
    positive = generator.random(40) < 0.3
    positive[0] = True
    area, levels = by_hand(scores, positive)
    precision, recall = precision_recall(scores, positive)
    assert interpolated_area(precision, recall) == pytest.approx(area, abs=1e-12)
    found = eleven_point(precision, recall)
    assert found == pytest.approx(levels, abs=1e-12)
    # without interpolation the area is scikit-learn's; the envelope only adds
    assert float((np.diff(recall, prepend=0.0) * precision).sum()) == pytest.approx(
        average_precision_score(positive, scores), abs=1e-12
    )
    assert area >= average_precision_score(positive, scores) - 1e-12
