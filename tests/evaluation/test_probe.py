"""The fast probe against scikit-learn's logistic regression."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from hexa.data.sources.source import Labels
from hexa.evaluation.protocols import probe
from hexa.evaluation.protocols.probe import choose_weight_decay, fast_probe, softmax_regression
from hexa.evaluation.split import folds
from hexa.runtime.random import Stream


def draw(
    count: int, width: int, classes: int, seed: int, noise: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    """Blobs whose features have means and scales far apart."""
    centres = np.random.default_rng(99).normal(size=(classes, width))
    generator = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = centres[y] + noise * generator.normal(size=(count, width))
    scales = np.linspace(0.1, 5, width)
    means = np.linspace(-3, 3, width)
    return x * scales + means, y


def reference(x: np.ndarray, y: np.ndarray, weight_decay: float) -> LogisticRegression:
    cost = 1 / (len(x) * weight_decay)
    regression = LogisticRegression(C=cost, tol=1e-8, max_iter=10_000)
    return regression.fit(x, y)


def probed(
    x: np.ndarray, y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, **options: Any
) -> dict[str, float]:
    """Return the result of the fast probe for given arrays."""
    labels = [*y, *test_y]
    return fast_probe(
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.from_numpy(test_x),
        torch.from_numpy(test_y),
        num_classes=int(max(labels)) + 1,
        **options,
    )


def test_group_folds_lacking_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first fold of whole groups lacks a class, the other folds choose too; useless groups are ignored."""
    chosen = Mock(wraps=choose_weight_decay)
    monkeypatch.setattr(probe, "choose_weight_decay", chosen)
    x, y = draw(240, 6, 2, 0, 4)
    halves = 2 * y + np.arange(240) // 120
    probed(x, y, x, y, groups=halves)
    parts = chosen.call_args.args[4]
    assert all(len(np.unique(y[part])) == 1 for part in parts)
    rows = np.concatenate(parts)
    assert len(np.unique(y[rows])) == 2
    useless = probed(x, y, x, y, groups=y)
    assert useless == probed(x, y, x, y)


def test_weight_decay_on_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group is fitted and held out, also if a class is of one group."""
    labels = np.repeat([0, 1, 0, 1, 2, 0, 1, 0, 1], 4)
    groups = np.repeat([0, 1, 2, 3, 3, 4, 5, 6, 7], 4)
    seen: list[Labels] = []

    def choose(x: Any, y: Any, classes: int, decays: Any, parts: list[Labels], *how: Any) -> float:
        seen.extend(parts)
        return 0.01

    monkeypatch.setattr(probe, "choose_weight_decay", choose)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(len(labels), 3)))
    probe.fit_probe(x, torch.from_numpy(labels), 3, groups=groups)
    assert seen
    for part in seen:
        assert not set(groups[part]) & set(np.delete(groups, part))


@pytest.mark.parametrize("weight_decay", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_softmax_regression_scikit_learn(weight_decay: float, dtype: type) -> None:
    x, y = draw(120, 7, 4, 0)
    weights = softmax_regression(x.astype(dtype), y, 4, weight_decay, tolerance=1e-6)
    expected = reference(x, y, weight_decay)
    share = 1e-3 if dtype is np.float64 else 1e-2
    tolerance = share * np.abs(expected.coef_).max()
    np.testing.assert_allclose(
        weights[:-1].T,
        expected.coef_,
        rtol=0,
        atol=tolerance,
    )
    new, _ = draw(50, 7, 4, 1)
    scores = new @ weights[:-1] + weights[-1]
    highest = scores.max(1, keepdims=True)
    scores = np.exp(scores - highest)
    found = scores / scores.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected.predict_proba(new), atol=2e-3)


@pytest.mark.parametrize(("count", "width"), [(200, 10), (30, 80)], ids=["tall", "wide"])
def test_fast_probe_scikit_learn(count: int, width: int) -> None:
    """Wide: the probe works in the span of the training features, scikit-learn doesn't."""
    x, y = draw(count, width, 5, 0, 3)
    test_x, test_y = draw(400, width, 5, 1, 3)
    found = probed(x, y, test_x, test_y, weight_decays=[0.05])
    scaler = StandardScaler().fit(x)
    regression = reference(scaler.transform(x), y, 0.05)
    expected = 100 * regression.score(scaler.transform(test_x), test_y)
    assert 30 < expected < 95
    assert found["top1"] == pytest.approx(expected, abs=0.51)
    assert found["weight_decay"] == 0.05


def test_constant_feature() -> None:
    """A feature that is constant in training is ignored."""
    x, y = draw(100, 6, 4, 0)
    test_x, test_y = draw(100, 6, 4, 1)
    expected = probed(x, y, test_x, test_y)
    x = np.insert(x, 2, 7.0, axis=1)
    growing = 1e6 * np.arange(100)
    test_x = np.insert(test_x, 2, growing, axis=1)
    found = probed(x, y, test_x, test_y)
    assert found == expected


def test_weight_decay_independence() -> None:
    """Test images decide nothing about the weight decay."""
    x, y = draw(60, 20, 4, 0, 4)
    test_x, test_y = draw(100, 20, 4, 1, 4)
    found = probed(x, y, test_x, test_y)
    other = probed(x, y, -test_x, (test_y + 1) % 4)
    assert found["weight_decay"] == other["weight_decay"]
    assert found["top1"] != other["top1"]


def test_weight_decay_scikit_learn() -> None:
    """The chosen weight decay is that of scikit-learn."""
    x, y = draw(60, 20, 4, 0, 4)
    x = StandardScaler().fit_transform(x)
    parts = folds(y, 5, Stream(0))
    candidates = (10.0, 1.0, 0.1, 1e-2, 1e-3)
    right = []
    for decay in candidates:
        count = 0
        for part in parts:
            kept = np.setdiff1d(np.arange(len(y)), part)
            regression = reference(x[kept], y[kept], decay)
            answers = regression.predict(x[part])
            count += int((answers == y[part]).sum())
        right.append(count)
    second, best = sorted(right)[-2:]
    assert best > second, "a case with one best candidate"
    expected = candidates[int(np.argmax(right))]
    assert choose_weight_decay(x, y, 4, candidates, parts) == expected


def test_absent_classes() -> None:
    """Classes absent from the draw are never answered."""
    x, y = draw(40, 6, 2, 0)
    absent = np.full(40, 4)
    found = probed(x, y, x, absent)
    assert found["top1"] == 0.0
