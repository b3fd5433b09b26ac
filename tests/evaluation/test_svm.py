"""The VOC07 protocols against scripts written with scikit-learn alone, and what they say when data do not suffice."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from hexa.config import UserError
from hexa.data.sources.source import ArraySource, Labels
from hexa.evaluation import linear_svm
from hexa.evaluation.protocol import Task
from hexa.evaluation.protocols import low_shot, svm
from hexa.nn.backbones import NetworkConfig
from hexa.runtime.random import Stream
from hexa.weights.preparation import Preparation
from hexa.weights.pretrained import Backbone
from tests.evaluation.given import task_of

NAMES = ("cat", "dog", "sheep")


def images(count: int, seed: int) -> tuple[Tensor, Labels]:
    """Pictures in which each class darkens a quarter of its own, unsurely; some difficult objects."""
    generator = np.random.default_rng(seed)
    labels = np.where(generator.random((count, 3)) < 0.3, 1, -1)
    labels[generator.random((count, 3)) < 0.1] = 0
    labels[:3] = 2 * np.eye(3, dtype=np.int64) - 1
    pixels = generator.integers(60, 256, (count, 3, 8, 8))
    for column, (top, left) in enumerate(((0, 0), (0, 4), (4, 0))):
        shown = (labels[:, column] == 1)[:, None, None, None]
        pixels[:, :, top : top + 4, left : left + 4] -= 40 * shown
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)), labels


def task(train: int = 90) -> Task:
    fit = ArraySource(*images(train, 1), list(NAMES), name=str(1))
    test = ArraySource(*images(60, 2), list(NAMES), name=str(2))
    config = NetworkConfig(
        name="pixels",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
    backbone = Backbone(nn.Flatten(), Preparation(config.mean, config.std, 8), config)
    return task_of(backbone, fit, test, NAMES)


def oracle_ap(labels: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> float:
    """Interpolated: scikit-learn's curve under its envelope."""
    precision, recall, _ = precision_recall_curve(labels, scores)
    envelope = np.maximum.accumulate(precision)
    area = -(np.diff(recall) * envelope[:-1]).sum()
    return float(area)


def prepared(made: Task) -> list[tuple[np.ndarray[Any, Any], Labels]]:
    found = []
    for source in (made.fit, made.test):
        features = source.images.flatten(1).double().numpy() / 255
        lengths = np.linalg.norm(features, axis=1, keepdims=True)
        found.append((features / (lengths + 1e-5), source.labels))
    return found


def machine(cost: float) -> LinearSVC:
    return LinearSVC(
        C=cost,
        class_weight={1: 2, -1: 1},
        dual=True,
        max_iter=2000,
        random_state=0,
    )


@pytest.mark.parametrize(
    ("preset", "costs", "train"),  # fewer images than the 192 features, and more
    [
        ("goyal", (0.01, 1.0, 100.0), 90),
        ("goyal", (0.01, 1.0, 100.0), 250),
        ("pcl", (0.5,), 90),
    ],
)
def test_svm_grid_search(preset: str, costs: tuple[float, ...], train: int) -> None:
    """Difficult images are negatives in training; they are not scored by Goyal's rule, and negatives by PCL's."""
    made = task(train=train)
    (x, y), (test_x, test_y) = prepared(made)
    expected = []
    for labels, test_labels in zip(y.T, test_y.T, strict=True):
        search = GridSearchCV(
            machine(1.0),
            {"C": costs},
            scoring="average_precision",
            cv=StratifiedKFold(3),
        )
        search.fit(x, np.where(labels == 1, 1, -1))
        scores = search.decision_function(test_x)
        kept = (test_labels != 0) | (preset == "pcl")
        precision = oracle_ap(test_labels[kept] == 1, scores[kept])
        expected.append(100 * precision)
    published = svm.PROTOCOL.presets[preset].model_dump()
    options = svm.SVMOptions.model_validate(published | {"costs": costs})
    found = svm.run(made, options)
    assert found.metrics["mAP"] == pytest.approx(np.mean(expected), abs=0.1)
    assert list(found.details["average_precision"].values()) == pytest.approx(expected, abs=0.1)
    if preset == "goyal":
        chosen = set(found.details["costs"].values())
        assert len(chosen) > 1, "else the search is not seen to matter"


@pytest.mark.parametrize(("protocol", "drawn"), [(svm, "-3-folds"), (low_shot, "")])
def test_svm_identities(protocol: Any, drawn: str) -> None:
    """Identities name all costs and the solver's limit, unless they are as published."""
    published = protocol.PROTOCOL.presets["goyal"]
    changes = {"costs": (0.5, 1.0), "max_iterations": 9}
    for options, end in (
        (published, f"-26-costs{drawn}-difficult-ignored"),
        (
            published.model_copy(update=changes),
            f"-C0.5,1{drawn}-difficult-ignored-max_iterations=9",
        ),
    ):
        assert protocol.PROTOCOL.identity("goyal", options).endswith(end)


def test_svm_few_negatives() -> None:
    """Folds need images without the class, too."""
    made = task()
    made.fit.labels[2:, 0] = 1
    with pytest.raises(UserError, match="negative images than the 3 folds"):
        svm.run(made, svm.SVMOptions())


def test_cost_folds_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are chosen on folds in whole groups, unless no fold would have images with and without the class."""
    scores = Mock(wraps=cross_val_score)
    monkeypatch.setattr(linear_svm, "cross_val_score", scores)
    monkeypatch.setattr(
        svm, "in_parallel", lambda made, label, work, jobs: [work(*j) for j in jobs]
    )
    made = task()
    options = svm.SVMOptions(costs=(0.01, 1.0))
    made.fit.grouped = groups = np.arange(90) // 4
    assert svm.run(made, options).grouped
    for call in scores.call_args_list:
        labels = call.args[2]
        assert len(call.kwargs["cv"]) == 3
        for rest, part in call.kwargs["cv"]:
            assert not set(groups[rest]) & set(groups[part])
            assert set(labels[part]) == {-1, 1}
    made = task()
    made.fit.grouped = (made.fit.labels[:, 0] == 1).astype(np.int64)
    svm.run(made, options)
    assert scores.call_args_list[6].kwargs["cv"] == 3
    assert not svm.run(made, svm.SVMOptions(costs=(1.0,))).grouped


def test_pcl_low_shot_draw() -> None:
    """PCL draws k images of every class and keeps all their labels."""
    _, labels = images(90, 1)
    options = low_shot.LowShotOptions()
    rows = low_shot.draw_samples(labels, 4, options, Stream(0))[0]
    assert len(rows) == 12
    for column, part in enumerate(np.split(rows, 3)):
        assert len(set(part.tolist())) == 4
        assert (labels[part, column] == 1).all()
    others = low_shot.draw_samples(labels, 4, options, Stream(1))[0]
    assert (rows != others).any()


def test_goyal_low_shot_draw() -> None:
    """Goyal draws k positives and k (C − 1) negatives of each class."""
    _, labels = images(90, 1)
    options = low_shot.LowShotOptions(sampling="goyal")
    samples = low_shot.draw_samples(labels, 4, options, Stream(0))
    for column, rows in enumerate(samples):
        assert len(set(rows.tolist())) == 12
        own = labels[rows, column]
        assert (own == 1).sum() == 4
        assert (own == -1).sum() == 8


@pytest.mark.parametrize("preset", ["pcl", "goyal"])
def test_low_shot_script(preset: str) -> None:
    """Low-shot is a script over draws."""
    made = task()
    (x, y), (test_x, test_y) = prepared(made)
    published = low_shot.PROTOCOL.presets[preset]
    costs = (0.5,) if preset == "pcl" else (0.1, 10.0)
    changes = {"shots": (2, 5), "draws": 3, "costs": costs}
    options = low_shot.LowShotOptions.model_validate(published.model_dump() | changes)
    found = low_shot.run(made, options)
    for k in (2, 5):
        table = np.empty((len(costs), 3))
        for draw in range(3):
            stream = Stream(0).child("low-shot", preset, k, draw)
            samples = low_shot.draw_samples(y, k, options, stream)
            for number, cost in enumerate(costs):
                precisions = []
                for column in range(3):
                    rows = samples[column]
                    kept = test_y[:, column] != 0
                    if preset == "pcl":
                        kept[:] = True
                    classifier = machine(cost)
                    classifier.fit(x[rows], np.where(y[rows, column] == 1, 1, -1))
                    scores = classifier.decision_function(test_x)
                    positive = test_y[kept, column] == 1
                    precisions.append(oracle_ap(positive, scores[kept]))
                table[number, draw] = 100 * np.mean(precisions)
        best = table[table.mean(1).argmax()]
        assert found.metrics[f"mAP@{k}"] == pytest.approx(best.mean(), abs=0.1)
        assert found.metrics[f"mAP@{k}_std"] == pytest.approx(best.std(ddof=1), abs=0.1)
    assert bool(found.notes) == (preset == "goyal")
