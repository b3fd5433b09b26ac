"""The table of a comparison: in 80 columns, with names, and fair to classes of unequal size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Says
from tests.evaluation.given import noise_images


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return 60 images of noise in one class and 5 in another, with no difference between them."""
    names = [f"good/{number}.png" for number in range(60)]
    names += [f"bad/{number}.png" for number in range(5)]
    return noise_images(
        tmp_path_factory.mktemp("lopsided"),
        dict.fromkeys(names, (8, 8)),
    )


def test_unequal_class_comparison(tmp_path: Path, lopsided: str, says: Says) -> None:
    command = f"compare pixels:8 random:small-resnet-8 --data {lopsided} --out {tmp_path}"
    said = " ".join(says(command).out.split())
    record = json.loads((tmp_path / "compare.json").read_text())
    assert record["majority_class"] == pytest.approx(100 * 60 / 65)
    assert "most frequent class, % 92.3 92.3" in said
    assert "k-NN, balanced, % ↑ 50.0 50.0" in said
    assert "note: classes: bad, good" in said
    assert record["backbones"][0]["balanced_accuracy"]["k-NN"] == pytest.approx(50.0)
    page = (tmp_path / "compare.html").read_text()
    assert "most frequent class" in page
    assert "in at most five folds" in page
    assert "<dt>seconds</dt>" not in page  # the limit is not the time of the run


def test_many_backbones(tmp_path: Path, lopsided: str, says: Says) -> None:
    """Numbers stand for the names of four backbones, which do not fit into 80 columns."""
    names = [f"random:small-resnet-8-{width}" for width in (4, 5, 6, 7)]
    told = says(f"compare {' '.join(names)} --data {lopsided} --out {tmp_path}").out
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[:4] == [f"({number}) {name}" for number, name in enumerate(names, 1)]
    assert lines[4] == "(1) (2) (3) (4)"
    assert any(line.startswith("− (1) ") for line in lines)
