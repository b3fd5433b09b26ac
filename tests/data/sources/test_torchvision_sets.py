"""Sets that torchvision lists, laid out in a folder as their authors publish them: nothing is downloaded here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torchvision.datasets

from hexa.data import open_source
from hexa.data.sources.torchvision_sets import SETS
from tests.data.sources.looks import labels_of
from tests.data.sources.test_opening import write_image


def dtd(root: Path) -> None:
    for split, names in (
        ("train", ["a_1", "b_1"]),
        ("val", ["a_2"]),
        ("test", ["a_3", "b_3", "b_4"]),
    ):
        for name in names:
            write_image(root / "dtd" / "dtd" / "images" / name[0] / f"{name}.jpg", 100)
        (root / "dtd" / "dtd" / "labels").mkdir(exist_ok=True)
        (root / "dtd" / "dtd" / "labels" / f"{split}1.txt").write_text(
            "".join(f"{n[0]}/{n}.jpg\n" for n in names)
        )


def food101(root: Path) -> None:
    base = root / "food-101"
    for split, names in (("train", ["1", "2"]), ("test", ["3"])):
        for food in ("pie", "soup"):
            for name in names:
                write_image(base / "images" / food / f"{name}.jpg", 100)
        (base / "meta").mkdir(exist_ok=True)
        listed = {food: [f"{food}/{name}" for name in names] for food in ("pie", "soup")}
        (base / "meta" / f"{split}.json").write_text(json.dumps(listed))


def pets(root: Path) -> None:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for split, names in (("trainval", ["Boxer_1", "Ragdoll_1"]), ("test", ["Ragdoll_2"])):
        rows = []
        for name in names:
            write_image(base / "images" / f"{name}.jpg", 100)
            rows.append(f"{name} {1 + name.startswith('R')} 1 1\n")
        (base / "annotations" / f"{split}.txt").write_text("".join(rows))


def aircraft(root: Path) -> None:
    base = root / "fgvc-aircraft-2013b" / "data"
    write_image(base / "images" / "1.jpg", 100)
    write_image(base / "images" / "2.jpg", 100)
    (base / "variants.txt").write_text("707\n747\n")
    (base / "images_variant_trainval.txt").write_text("1 707\n2 747\n")
    (base / "images_variant_test.txt").write_text("2 747\n")


def caltech101(root: Path) -> None:
    for name in ("ant", "bee", "BACKGROUND_Google"):
        write_image(root / "caltech101" / "101_ObjectCategories" / name / "image_0001.jpg", 100)
    (root / "caltech101" / "Annotations").mkdir()


EXPECTED = {
    "dtd": (dtd, [0, 1], [0, 1, 1], ["a", "b"]),
    "food101": (food101, [0, 0, 1, 1], [0, 1], ["pie", "soup"]),
    "pets": (pets, [0, 1], [1], ["Boxer", "Ragdoll"]),
    "aircraft": (aircraft, [0, 1], [1], ["707", "747"]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_torchvision_files_and_labels(tmp_path: Path, name: str) -> None:
    """Files and labels are those of torchvision."""
    lay_out, train, test, classes = EXPECTED[name]
    lay_out(tmp_path)
    source = open_source(f"{name}:{tmp_path}")
    assert source.split == "train"
    assert labels_of(source) == train
    assert source.class_names == classes
    assert labels_of(open_source(f"{name}:{tmp_path}", "test")) == test
    assert source.decode(0).shape == (3, 5, 6)
    assert not Path(source.paths[0]).is_absolute()
    dataset, _, splits = SETS[name]
    assert [
        label for _, label in getattr(torchvision.datasets, dataset)(tmp_path, **splits["train"])
    ] == train


def test_caltech101_split(tmp_path: Path) -> None:
    caltech101(tmp_path)
    source = open_source(f"caltech101:{tmp_path}")
    assert source.splits == ["train"]
    assert labels_of(source) == [0, 1]
    assert source.decode(1).shape == (3, 5, 6)
