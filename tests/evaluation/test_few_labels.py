"""Few labels per class: k-NN and probe over draws, against scikit-learn on the same drawn images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation import evaluate
from hexa.evaluation.split import draw_per_class
from hexa.runtime.random import Stream
from tests.evaluation.given import QUIET
from tests.evaluation.test_evaluate import pictures


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    source = open_source("digits", split)
    images = [source.decode(place).numpy() for place in range(len(source))]
    features = np.stack([image.reshape(-1) / 255 for image in images])
    return features, source.labels


def drawn(labels: np.ndarray, k: int, number: int) -> np.ndarray:
    return draw_per_class(labels, k, Stream(0).child("labels", number))


def test_few_label_knn_scikit_learn() -> None:
    x, y = digits("train")
    test_x, test_y = digits("test")
    result = evaluate(
        "knn",
        "pixels:8",
        "digits",
        k=1,
        shots=(1, 4),
        draws=3,
        **QUIET,
    )
    assert result["protocol"] == "knn/k1-t0.07-1,4-labels-3-draws"
    for k in (1, 4):
        chosen = [drawn(y, k, number) for number in range(3)]
        assert all(np.bincount(y[rows]).tolist() == [k] * 10 for rows in chosen)
        expected = []
        for rows in chosen:
            machine = KNeighborsClassifier(1, metric="cosine")
            machine.fit(x[rows], y[rows])
            expected.append(100 * machine.score(test_x, test_y))
        scores = result["details"][str(k)]["draws"]
        assert scores == pytest.approx(expected, abs=0.23)
        assert result["metrics"][f"top1@{k}"] == pytest.approx(np.mean(expected), abs=0.23)
        low, high = stats.t.interval(0.95, 2, np.mean(scores), stats.sem(scores))
        assert result["metrics"][f"top1@{k}_interval"] == pytest.approx((high - low) / 2)
        assert result["metrics"][f"top1@{k}_std"] == pytest.approx(np.std(scores, ddof=1))


def test_few_label_probe_scikit_learn() -> None:
    """One label a class has nothing to hold out, so the weight decay is 0.01; test images decide nothing."""
    x, y = digits("train")
    test_x, test_y = digits("test")
    result = evaluate("probe", "pixels:8", "digits", shots=(1,), draws=2, **QUIET)
    expected = []
    for number in range(2):
        rows = drawn(y, 1, number)
        scaler = StandardScaler().fit(x[rows])
        machine = LogisticRegression(C=1 / (10 * 0.01), tol=1e-8, max_iter=10_000)
        machine.fit(scaler.transform(x[rows]), y[rows])
        expected.append(100 * machine.score(scaler.transform(test_x), test_y))
    assert result["details"]["1"]["draws"] == pytest.approx(expected, abs=0.7)
    company = {"balanced_accuracy", "majority_class"}
    assert set(result["metrics"]) == {"top1", "top1_std", "top1_interval"} | company, (
        "a single number of labels needs no name"
    )


def test_nested_label_draws() -> None:
    """Draws are the same for every backbone, and nested."""
    labels = digits("train")[1]
    few = set(drawn(labels, 2, 1).tolist())
    more = set(drawn(labels, 8, 1).tolist())
    assert few < more
    assert len(more) == 80
    assert few != set(drawn(labels, 2, 2).tolist())


def test_shots_above_class_size(tmp_path: Path) -> None:
    """Numbers of labels that a class is too small for are left out."""
    data = pictures(tmp_path / "fit", {"a": 3, "b": 9})
    test = pictures(tmp_path / "other", {"a": 2, "b": 2}, shade=9)
    result = evaluate(
        "knn",
        "pixels:10",
        data,
        test_data=test,
        shots=(1, 2, 4, 8),
        **QUIET,
    )
    assert set(result["details"]) == {"1", "2"}
    assert result["options"]["shots"] == [1, 2]
    assert any(
        "class 'a' has only 3 labelled images: 4, 8 per class are left out" in note
        for note in result["notes"]
    )
    with pytest.raises(UserError, match="such as --shots 3"):
        evaluate("probe", "pixels:10", data, test_data=test, shots=(4,), **QUIET)
