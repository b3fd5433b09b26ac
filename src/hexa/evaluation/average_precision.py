"""Average precision of a ranking, by the rules that VOC has had."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def precision_recall(
    scores: NDArray[np.floating],
    positive: NDArray[np.bool_],
    num_sought: int | None = None,
) -> tuple[Values, Values]:
    """Precision and recall of what scores at least t, for each t among the scores, highest first.

    scores: [N], positive: bool [N] with at least one. Equal scores count together, so that the order of images decides
    nothing. num_sought: the number of positives, if some of them may have no score at all.
    """
    if len(scores) == 0:
        return np.empty(0), np.empty(0)
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # the last of each run of equal scores
    right = np.cumsum(positive[order], dtype=np.float64)[last]
    precision = right / (np.flatnonzero(last) + 1)
    recall = right / (num_sought or right[-1])
    return precision, recall


def interpolated_area(precision: Values, recall: Values) -> float:
    """Σ (r_i − r_{i−1}) · max_{j ≥ i} p_j: the area below the monotone envelope, all recalls (VOC from 2010).

    recall: increasing; it may end below 1 (detections may miss objects), and nothing is counted beyond. F24.
    """
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(recall, prepend=0.0)
    return float((steps * envelope).sum())
