"""Accuracies of unbalanced classes: balanced accuracy, share of the most frequent class, and a note in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

import hexa
from hexa.evaluation.protocol import accuracies, balanced_accuracy, majority_class
from tests.conftest import Says
from tests.evaluation.given import QUIET, noise_images


@pytest.mark.parametrize(
    "counts",
    [
        (40, 40, 40),
        (380, 19),
        (100, 7, 0, 1),
    ],
)
def test_balanced_accuracy_scikit_learn(counts: tuple[int, ...]) -> None:
    generator = np.random.default_rng(len(counts))
    labels = np.repeat(np.arange(len(counts)), counts)
    labels = generator.permutation(labels)
    is_right = generator.random(len(labels)) < 0.6
    wrong = generator.integers(2, size=1)
    answers = np.where(is_right, labels, wrong)
    scores = torch.nn.functional.one_hot(torch.from_numpy(answers), len(counts))
    found = accuracies(scores.float(), torch.from_numpy(labels))
    expected = 100 * balanced_accuracy_score(labels, answers)
    assert found["balanced_accuracy"] == pytest.approx(expected)
    assert balanced_accuracy(answers == labels, labels) == pytest.approx(expected)
    assert majority_class(labels) == pytest.approx(100 * max(counts) / sum(counts))


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Noise: features that tell nothing."""
    counts = {
        "train/bad": 10,
        "train/good": 190,
        "train/unseen": 10,
        "test/bad": 5,
        "test/good": 95,
    }
    names = [f"{kind}/{number}.png" for kind, count in counts.items() for number in range(count)]
    return noise_images(tmp_path_factory.mktemp("lopsided"), dict.fromkeys(names, (8, 8)))


PROTOCOLS: list[tuple[str, dict[str, Any], str]] = [
    ("knn", {"k": 5}, ""),
    ("knn", {"shots": [1, 2]}, "@2"),
    ("probe", {}, ""),
    ("linear", {"preset": "cifar", "epochs": 1}, ""),
    ("fine-tune", {"epochs": 1, "learning_rates": [0.001]}, ""),
    ("robust", {"epsilons": 1, "steps": 1, "targets": 1}, ""),
]


@pytest.mark.parametrize(("protocol", "options", "at"), PROTOCOLS)
def test_accuracy_companions(
    lopsided: str, protocol: str, options: dict[str, Any], at: str
) -> None:
    """Every accuracy comes with balanced accuracy and majority class."""
    backbone = "random:small-resnet-4-8" if protocol == "fine-tune" else "pixels:8"
    result = hexa.evaluate(protocol, backbone, lopsided, **QUIET, **options)
    metrics = result["metrics"]
    assert metrics["majority_class"] == pytest.approx(95.0)
    assert 0 <= metrics[f"balanced_accuracy{at}"] <= 100
    if metrics[f"top1{at}"] == pytest.approx(95.0):
        assert metrics[f"balanced_accuracy{at}"] == pytest.approx(50.0)


def test_constant_answer_note(lopsided: str, says: Says) -> None:
    said = says(f"evaluate knn pixels:8 --data {lopsided} --k 100").out
    assert "top1 95.00 · balanced_accuracy 50.00 · majority_class 95.00" in said
    assert (
        "note: the accuracy (95.0 %) is not above the share of the most frequent class, good "
        "(95.0 %), which a constant answer reaches; look at balanced_accuracy (a constant "
        "answer: 50.0 %)"
    ) in " ".join(said.split())
