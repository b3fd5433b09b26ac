"""The table of a comparison: in 80 columns, with names, and fair to classes of unequal size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hexa.comparison import labelled
from hexa.comparison.labelled import MEASURES, Judge
from hexa.data import open_source
from hexa.weights.pretrained import random_backbone
from tests.conftest import Says
from tests.evaluation.given import SMALL


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 60 images of noise in one class and 5 in another, with no difference between them."""
    folder = tmp_path_factory.mktemp("lopsided")
    generator = np.random.default_rng(0)
    for name, count in (("good", 60), ("bad", 5)):
        (folder / name).mkdir()
        for number in range(count):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_unequal_class_comparison(tmp_path: Path, lopsided: Path, says: Says) -> None:
    command = f"compare pixels:8 random:small-resnet-8 --data {lopsided} --out {tmp_path}"
    said = " ".join(says(command).out.split())
    record = json.loads((tmp_path / "compare.json").read_text())
    assert record["majority_class"] == pytest.approx(100 * 60 / 65)
    assert "most frequent class, % 92.3 92.3" in said
    assert "k-NN, balanced, % ↑ 50.0 50.0" in said
    assert record["backbones"][0]["balanced_accuracy"]["k-NN"] == pytest.approx(50.0)
    assert "most frequent class" in (tmp_path / "compare.html").read_text()


def test_many_backbones(tmp_path: Path, lopsided: Path, says: Says) -> None:
    """Numbers stand for the names of four backbones, which do not fit into 80 columns."""
    names = [f"random:small-resnet-8-{width}" for width in (4, 5, 6, 7)]
    told = says(f"compare {' '.join(names)} --data {lopsided} --out {tmp_path}").out
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[:4] == [f"({number}) {name}" for number, name in enumerate(names, 1)]
    assert lines[4] == "(1) (2) (3) (4)"
    assert any(line.startswith("− (1) ") for line in lines)


def test_balanced_accuracy_class_means() -> None:
    """Balanced accuracies are means over classes."""
    source = open_source("digits", "test")
    rows = np.flatnonzero((source.labels > 1) | (np.arange(len(source)) % 7 == 0))
    labels = source.labels[rows]
    backbone = random_backbone(SMALL, 8)
    from hexa.evaluation.features import extract

    features = extract(backbone, source)[0][rows]
    judge = Judge(labels, splits=1)
    scores = judge.scores(features)
    for measure in MEASURES:
        right = scores.right[measure] > 0
        wanted = labels[judge.judged]
        answers = np.where(right, wanted, -1)
        recall = [np.mean(answers[wanted == one] == one) for one in np.unique(wanted)]
        assert scores.balanced(measure) == pytest.approx(100 * np.mean(recall))
    assert scores.majority == pytest.approx(100 * np.bincount(labels).max() / len(labels))
    equal = labelled.Scores(scores.right, np.repeat([0, 1], 5))
    assert equal.majority is None
