"""VOC's own layout: lists, labels 1 / 0 / −1, splits, and what is wrong with it in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hexa.data import open_source
from tests.data.sources.looks import labels_of
from tests.refusals import one_line

LABELS = {"cat": [1, -1, 0], "dog": [-1, 1, 1]}


def kit(folder: Path, lists: tuple[str, ...] = ("trainval", "test"), year: str = "VOC2007") -> Path:
    root = folder / "VOCdevkit" / year
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    for name in lists:
        ids = [f"{name}{number}" for number in range(3)]
        for one in ids:
            Image.new("RGB", (12, 8), (100, 50, 20)).save(root / "JPEGImages" / f"{one}.jpg")
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(ids))
        for label, column in LABELS.items():
            rows = [f"{one} {value:2d}" for one, value in zip(ids, column, strict=True)]
            (root / "ImageSets" / "Main" / f"{label}_{name}.txt").write_text("\n".join(rows) + "\n")
    return folder / "VOCdevkit"


def test_voc_labels(tmp_path: Path) -> None:
    """Labels are those of the lists."""
    source = open_source(f"voc:{kit(tmp_path)}")
    assert source.class_names == ["cat", "dog"]
    assert labels_of(source) == [
        [1, -1],
        [-1, 1],
        [0, 1],
    ]
    assert source.classes is None
    assert source.split == "train"
    assert source.splits == ["train", "test", "trainval"]
    assert source.paths[0] == "JPEGImages/trainval0.jpg"
    assert source.decode(0).shape == (3, 8, 12)
    assert open_source(f"voc:{kit(tmp_path / 'b')}", "test").paths[0] == "JPEGImages/test0.jpg"


def test_voc_year_and_halves(tmp_path: Path) -> None:
    """A year can be named; without a test set the halves serve."""
    root = kit(tmp_path, ("train", "val", "trainval"), "VOC2012")
    assert open_source(f"voc:{root / 'VOC2012'}#test").paths[0] == "JPEGImages/val0.jpg"
    assert open_source(f"voc:{root / 'VOC2012'}#train").paths[0] == "JPEGImages/train0.jpg"
    assert open_source(f"voc:{root / 'VOC2012'}#trainval").paths[0] == "JPEGImages/trainval0.jpg"


def test_voc_fingerprint(tmp_path: Path) -> None:
    """The fingerprint sees labels too."""
    root = kit(tmp_path)
    before = open_source(f"voc:{root}").fingerprint
    file = root / "VOC2007" / "ImageSets" / "Main" / "cat_trainval.txt"
    file.write_text(file.read_text().replace(" 0", "-1"))
    assert open_source(f"voc:{root}").fingerprint != before


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("", "", "no VOC data: neither .* nor its VOC2007 contains"),
        ("JPEGImages/trainval1.jpg", "", "1 listed images are not in"),
        ("ImageSets/Main/cat_trainval.txt", "a b c\n", "cat_trainval.txt is not a list"),
        ("ImageSets/Main/dog_trainval.txt", "x 1\n", "list different images"),
        (
            "ImageSets/Main/cat_trainval.txt",
            "trainval0 2\ntrainval1 1\n",
            "cat_trainval.txt is not a list",
        ),
    ],
)
def test_voc_damage(tmp_path: Path, file: str, text: str, said: str) -> None:
    damaged = kit(tmp_path) / "VOC2007" / file
    if text:
        damaged.write_text(text)
    else:
        damaged.rename(tmp_path / "elsewhere")
    with one_line(said):
        open_source(f"voc:{tmp_path / 'VOCdevkit'}")


def test_real_voc_subset(real_data: Callable[[str], Path]) -> None:
    source = open_source(f"voc:{real_data('voc2007')}/VOCdevkit", "test")
    assert source.labels.shape == (900, 20)
    assert set(np.unique(source.labels)) == {-1, 0, 1}
