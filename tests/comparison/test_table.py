"""The table of a comparison: in 80 columns, with names, and fair to classes of unequal size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len

from hexa.comparison import labelled
from hexa.comparison.labelled import DECIDING, MEASURES, Judge
from hexa.data import open_source
from hexa.reporting.tables import shortened
from hexa.weights.pretrained import random_backbone, save_backbone
from tests.conftest import Says
from tests.evaluation.given import SMALL


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of noise of one class and 5 of another: nothing tells them apart."""
    folder, generator = tmp_path_factory.mktemp("lopsided"), np.random.default_rng(0)
    for name, count in (("good", 60), ("bad", 5)):
        (folder / name).mkdir()
        for number in range(count):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def lines_of(said: str) -> list[str]:
    return [line for line in said.splitlines() if "↑" in line or "px" in line or "−" in line]


NAMES = [
    ["a", "b", "c"],
    ["runs/a-very-long-name-of-a-run-01", "runs/a-very-long-name-of-a-run-02", "x"],
    [
        "重みの重みの重みの重みの重み一",
        "重みの重みの重みの重みの重み二",
        "重みの重みの重みの重みの重み三",
    ],
]


@pytest.mark.parametrize("names", NAMES)
def test_three_backbones_fit_80_columns(
    tmp_path: Path, lopsided: Path, says: Says, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    files = [tmp_path / f"{name}.safetensors" for name in names]
    for seed, file in enumerate(files):
        save_backbone(random_backbone(SMALL, 8, seed), file)
    command = ["compare", *map(str, files), "--data", str(lopsided), "--out", tmp_path / "out"]
    said = says(*command).out
    table = lines_of(said.partition("note:")[0])
    assert len(table) > 5
    assert all(cell_len(line) <= 80 for line in table), said
    assert "column" not in said
    # one line a row: no cell is broken
    assert sum("k-NN" in line for line in table) == 2
    record = json.loads((tmp_path / "out/compare.json").read_text())
    heads = shortened([side["name"] for side in record["backbones"]], 14)
    assert len(set(heads)) == 3
    for head in heads:
        assert f"{head} " in said or f"{head}\n" in said
    assert f"  − {heads[0]}" in said
    page = (tmp_path / "out/compare.html").read_text()
    assert "column 2" not in page


def test_a_comparison_of_unequal_classes(tmp_path: Path, lopsided: Path, says: Says) -> None:
    command = ["compare", "pixels:8", "random:small-resnet-8", "--data", str(lopsided)]
    said = " ".join(says(*command, "--out", tmp_path).out.split())
    record = json.loads((tmp_path / "compare.json").read_text())
    assert record["majority_class"] == pytest.approx(100 * 60 / 65)
    assert "most frequent class, % 92.3 92.3" in said
    assert "k-NN, balanced, % ↑ 50.0 50.0" in said
    assert "not above the share of the most frequent class, good (92.3 %)" in said
    assert record["backbones"][0]["balanced_accuracy"]["k-NN"] == pytest.approx(50.0)
    assert "most frequent class" in (tmp_path / "compare.html").read_text()


def test_balanced_accuracies_are_means_over_classes() -> None:
    source = open_source("digits", "test")
    rows = np.flatnonzero((source.labels > 1) | (np.arange(len(source)) % 7 == 0))
    labels = source.labels[rows]
    backbone = random_backbone(SMALL, 8)
    from hexa.evaluation.features import extract

    features = extract(backbone, source)[0][rows]
    judge = Judge(labels, splits=1)
    scores = judge.scores(features)
    for measure in MEASURES:
        right, wanted = scores.right[measure] > 0, labels[judge.judged]
        answers = np.where(right, wanted, -1)
        recall = [np.mean(answers[wanted == one] == one) for one in np.unique(wanted)]
        assert scores.balanced(measure) == pytest.approx(100 * np.mean(recall))
    assert scores.majority == pytest.approx(100 * np.bincount(labels).max() / len(labels))
    assert scores.few_balanced.keys() == scores.few.keys()
    equal = labelled.Scores(scores.right, {}, labels={DECIDING: np.repeat([0, 1], 5)})
    assert equal.majority is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["first/backbone", "second/backbone"], ["first/bac…", "second/ba…"]),
        (["timm:vit_small_a", "timm:vit_small_b"], ["…_small_a", "…_small_b"]),
        (["x" * 20, "x" * 20 + "y" * 20], ["…xxxxxxxxx", "…yyyyyyyyy"]),
        (["a" + "x" * 20, "b" + "x" * 20], ["axxxxxxxx…", "bxxxxxxxx…"]),
        (["x12345678901", "x12345678901"], ["…345678901", "…345678901"]),
        (["重" * 10 + "一", "重" * 10 + "二"], ["…重重重一", "…重重重二"]),
    ],
)
def test_long_names_stay_apart(names: list[str], expected: list[str]) -> None:
    found = shortened(names, 10)
    assert len(set(found)) == len(set(names))
    assert all(cell_len(name) <= 10 for name in found)
    if len(names[0]) != 16:
        assert found == expected
