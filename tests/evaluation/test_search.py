"""Duplicates, outliers and neighbours in a file of features, against naive loops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.embed import embed
from hexa.evaluation.search import Features
from hexa.weights.pretrained import random_backbone
from tests.conftest import Says
from tests.evaluation.given import SMALL
from tests.refusals import one_line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Thirty directions; 3, 7 and 11 nearly agree, as do 20 and 21 even more; 29 lies opposite of them."""
    features = np.random.default_rng(0).normal(size=(30, 16)).astype(np.float32)
    features[7], features[11] = features[3] + 0.05, features[3] - 0.05
    features[21] = features[20] + 0.01
    features += 10  # as after a ReLU: every cosine is near 1 before the mean is removed
    np.savez(
        tmp_path / "x.npz",
        features=features,
        paths=np.array([f"{place}.png" for place in range(30)]),
    )
    return tmp_path / "x.npz"


def cosines(file: Path) -> np.ndarray:
    features = np.load(file)["features"].astype(np.float64)
    features -= features.mean(0)
    return np.array([[a @ b / np.sqrt(a @ a * (b @ b)) for b in features] for a in features])


def test_duplicates_are_linked_groups_the_closest_first(file: Path) -> None:
    found, expected = Features(file).duplicates(0.95), cosines(file)
    assert [one.paths for one in found] == [["20.png", "21.png"], ["3.png", "7.png", "11.png"]]
    assert found[0].similarity == pytest.approx(expected[20, 21], abs=1e-6)
    pairs = expected[3, 7], expected[3, 11], expected[7, 11]
    assert (found[1].similarity, found[1].lowest) == pytest.approx(
        (max(pairs), min(pairs)), abs=1e-6
    )
    assert Features(file).duplicates(0.9999999) == []


def test_outliers_and_neighbours(file: Path) -> None:
    expected = cosines(file)
    np.fill_diagonal(expected, -2)
    mean = np.sort(expected)[:, -10:].mean(1)
    found = Features(file).outliers(4)
    assert [one.paths for one in found] == [[f"{place}.png"] for place in np.argsort(mean)[:4]]
    assert [one.similarity for one in found] == pytest.approx(sorted(mean)[:4], abs=1e-6)
    near = Features(file).like("3.png", 5)
    assert [one.paths for one in near] == [
        [f"{place}.png"] for place in np.argsort(-expected[3])[:5]
    ]
    assert Features(file).like("photos/3.png", 5) == near


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_of_images(suffix: str, tmp_path: Path, says: Says) -> None:
    out = tmp_path / f"x{suffix}"
    embed(random_backbone(SMALL, 16, 0), "digits#test", out)
    said = says(
        "search", out, "--like", open_source("digits#test").paths[0], "--count", "3", "--json"
    ).out
    assert len(json.loads(said)) == 3
    said = says("search", out, "--duplicates", "--least", "1").out
    assert (
        "0 groups among 450 images at a similarity of 1 or more (--least); the closest two have 0.9"
        in said
    )
    said = says("search", out, "--like", f"elsewhere/{Features(out).paths[7]}", "--count", "1").out
    assert f"most like {Features(out).paths[7]}\n" in said
    with pytest.raises(UserError, match="no image of that path"):
        Features(out).like("nowhere.png")
    err = says("search", out, "--duplicates", "--least", "2", status=2).err
    assert "--least must be a cosine similarity, from -1 to 1, got 2" in err


@pytest.mark.parametrize("kind", ["missing", "text", "zip", "one", "words", "infinite"])
def test_other_files_are_one_line(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    if kind in ("text", "zip"):
        file.write_bytes(b"not an archive" if kind == "text" else b"PK\x03\x04 cut off")
    elif kind != "missing":
        features = np.full(
            (1 if kind == "one" else 3, 4), np.inf if kind == "infinite" else 1.0, np.float32
        )
        np.savez(
            file,
            features=features.astype("U3") if kind == "words" else features,
            paths=["a.png"] * len(features),
        )
    with one_line(r"x\.npz: "):
        Features(file)
