"""Sources: folders, parquet files and known data sets, and what is said about those that are not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.sources.source import Subset
from tests.data.image_files import bitmap
from tests.data.sources.looks import labels_of, reds_of
from tests.refusals import one_line


def write_image(path: Path, value: int, size: tuple[int, int] = (6, 5)) -> Path:
    """A flat image, whose value tells which it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)
    return path


def write_parquet(
    path: Path, values: list[int], labels: list[int] | None = None, names: list[str] | None = None
) -> None:
    """A Parquet file of flat images, as `datasets` writes it."""
    columns: dict[str, Any] = {
        "image": [{"bytes": bitmap(value), "path": f"{value}.png"} for value in values]
    }
    if labels is not None:
        columns["label"] = labels
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


def test_digits_split() -> None:
    """Each digit of scikit-learn is in one of the splits, which have every class."""
    train, test = (open_source("digits", split) for split in ("train", "test"))
    assert train.splits == ["train", "test"]
    assert train.fingerprint == open_source("digits#train").fingerprint != test.fingerprint
    assert np.bincount(train.labels).min() > 120
    every, _ = load_digits(return_X_y=True)
    found = [source.decode(i)[0].numpy() for source in (train, test) for i in range(len(source))]
    expected = np.round(every * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, found)) == sorted(map(bytes, expected))


def test_folder_classes(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "ant", "bee")):
        write_image(tmp_path / name / "deep" / f"{number}.png", number)
        write_image(tmp_path / name / f"{number + 10}.jpg", number + 10)
    source = open_source(f"folder:{tmp_path}", "train")
    assert source.class_names == ["ant", "bee", "cat"]
    assert (
        " ".join(source.paths)
        == "ant/11.jpg ant/deep/1.png bee/12.jpg bee/deep/2.png cat/10.jpg cat/deep/0.png"
    )
    assert labels_of(source) == [0, 0, 1, 1, 2, 2]
    assert source.labels.dtype == np.int64
    assert reds_of(source) == [11, 1, 12, 2, 10, 0]


@pytest.mark.parametrize(
    "names", [["a.png", "b.png"], ["one/a.png", "one/b.png"], ["one/a.png", "two/b.png", "c.png"]]
)
def test_unlabelled_folder(tmp_path: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        write_image(tmp_path / name, number)
    (tmp_path / "notes.txt").write_text("not an image")
    write_image(tmp_path / ".hidden" / "x.png", 9)
    source = open_source(f"folder:{tmp_path}")
    assert source.labels is None
    assert source.class_names is None
    assert source.paths == sorted(names)


@pytest.mark.parametrize(("other", "split"), [("test", "test"), ("Validation", "val")])
def test_folder_splits(tmp_path: Path, other: str, split: str) -> None:
    """A split has its usual name and that of its folder; without `test`, `val` replaces it."""
    for number, name in enumerate(("ant", "bee", "cat")):
        write_image(tmp_path / "train" / name / "1.png", number)
    write_image(tmp_path / other / "cat" / "2.png", 7)
    write_image(tmp_path / other / "bee" / "3.png", 8)
    train = open_source(f"folder:{tmp_path}")
    test = open_source(f"folder:{tmp_path}#{split}")
    assert train.split == "train"
    assert train.splits == test.splits == ["train", split]
    for name in ("test", other):
        assert open_source(f"folder:{tmp_path}", name).split == test.split == split
    assert train.class_names == test.class_names == ["ant", "bee", "cat"]
    assert labels_of(test) == [1, 2]
    with one_line(rf"no split 'unlabelled'; choose one of its splits \(train, {split}\)"):
        open_source(f"folder:{tmp_path}", "unlabelled")
    # without images, a folder beside a single split changes nothing
    shutil.rmtree(tmp_path / other)
    (tmp_path / "logs").mkdir()
    assert open_source(f"folder:{tmp_path}").class_names == ["ant", "bee", "cat"]


def test_nested_folder_groups(tmp_path: Path) -> None:
    """Folders with the same name, including their sub-folders, are one group; an image outside of
    folders has no group."""
    names = ["a/p1/0", "a/p1/1", "a/p2/2", "b/p2/x/3", "b/p2/4", "b/5", "c/p1/6", "c/p1/7", "d/8"]
    for value, name in enumerate(names):
        write_image(tmp_path / f"{name}.png", value)
    source = open_source(f"folder:{tmp_path}")
    groups = source.groups()
    of = dict(zip((path[-5] for path in source.paths), groups.tolist(), strict=True))
    for alike, count in (("0167", 1), ("234", 1), ("012345678", 4)):
        assert len({of[name] for name in alike}) == count
    assert Subset(source, np.array([2, 0])).groups().tolist() == groups[[2, 0]].tolist()
    assert Subset(open_source("digits"), np.arange(3)).groups() is None


def test_class_named_train(tmp_path: Path) -> None:
    """A class called train is a class, unless all folders are named as splits."""
    for number, name in enumerate(("train", "aeroplane")):
        write_image(tmp_path / name / "1.png", number)
    assert open_source(f"folder:{tmp_path}").class_names == ["aeroplane", "train"]
    write_image(tmp_path / "Test" / "1.png", 2)  # nobody's classes
    (tmp_path / "annotations").mkdir()
    with pytest.raises(
        UserError,
        match=r"folders named as splits \(Test, train\) and others \(aeroplane\); move.*/train$",
    ):
        open_source(f"folder:{tmp_path}")
    (tmp_path / "aeroplane" / "1.png").unlink()
    assert open_source(f"folder:{tmp_path}").splits == ["train", "test"]


@pytest.mark.parametrize(
    "names",
    [
        ("training_set", "test_set"),
        ("seg_train", "seg_test"),
        ("train", "dev"),
        ("trainset", "eval"),
        ("trainval", "test"),
    ],
)
@pytest.mark.parametrize("inner", [("ant", "bee"), (".", ".")], ids=["nested", "flat"])
@pytest.mark.parametrize("above", [".", "images/all"])
def test_folders_like_splits(
    tmp_path: Path, names: tuple[str, str], inner: tuple[str, str], above: str
) -> None:
    """Split folders of other names are no classes, and are not merged."""
    for value, name in enumerate(names):
        for number, folder in enumerate(inner):
            write_image(tmp_path / above / name / folder / f"{number}.png", value)
    unusual = ", ".join(sorted({*names} - {"train", "test"}))
    with one_line(f"look like splits .*; rename {unusual} to train.* such as .*/{names[0]}$"):
        open_source(f"folder:{tmp_path}")
    assert len(open_source(f"folder:{tmp_path / above / names[1]}")) == 2


@pytest.mark.parametrize(
    "names",
    [
        ["crash-test", "depot", "test_drive_1", "trains"],
        ["eval_north", "eval_south"],
        ["a-train", "train_2"],
        ["other", "test", "val"],
    ],
)
@pytest.mark.parametrize("inner", ["front", "."])
def test_classes_like_splits(tmp_path: Path, names: list[str], inner: str) -> None:
    """Without a folder for training, or without another one, folders are classes."""
    for value, name in enumerate(names):
        write_image(tmp_path / name / inner / "1.png", value)
    assert open_source(f"folder:{tmp_path}").class_names == names


def test_splits_in_a_folder(tmp_path: Path) -> None:
    """Splits may be in the only folder with images, which may be in another one."""
    images = tmp_path / "set" / "images"
    for value, name in enumerate(("train/ant", "train/bee", "val/ant", "val/bee")):
        write_image(images / name / "1.png", value)
        (tmp_path / "labels" / name).mkdir(parents=True)
        (tmp_path / "labels" / name / "1.txt").write_text("0 0.5 0.5 1 1")
    train = open_source(f"folder:{tmp_path}")
    assert train.splits == ["train", "val"]
    assert labels_of(train) == [0, 1]
    assert reds_of(train) == [0, 1]
    assert reds_of(open_source(f"folder:{tmp_path}#val")) == [2, 3]
    write_image(images.parent / "logo.png", 4)
    assert open_source(f"folder:{tmp_path}").left_out == {"next to the splits": 1}
    shutil.rmtree(images / "val")
    (images.parent / "logo.png").unlink()
    alone = open_source(f"folder:{tmp_path}")
    assert alone.labels is None
    assert alone.paths == ["set/images/train/ant/1.png", "set/images/train/bee/1.png"]


def test_folder_in_itself(tmp_path: Path) -> None:
    write_image(tmp_path / "1.png", 1)
    (tmp_path / "again").symlink_to(tmp_path)
    assert open_source(f"folder:{tmp_path}").paths == ["1.png"]


def test_folder_without_train(tmp_path: Path) -> None:
    """No other split is read instead of train."""
    for value, name in enumerate(("val", "test")):
        write_image(tmp_path / name / "1.png", value)
    for split in (None, "train"):
        with one_line(
            r"no split 'train'; choose one of its splits \(test, val\), such as .*#test$"
        ):
            open_source(f"folder:{tmp_path}", split)


@pytest.mark.parametrize(
    ("above", "splits", "stray"), [(".", "val", 1), ("images", "train test", 11)]
)
def test_images_next_to_splits(tmp_path: Path, above: str, splits: str, stray: int) -> None:
    """Images next to splits do not vanish without a word."""
    for name in splits.split():
        write_image(tmp_path / above / name / "1.png", 1)
    for number in range(stray):
        write_image(tmp_path / f"{number}.jpg", number)
    with one_line(f"images next to them .*0.jpg.*such as .*/{splits[:5]}"):
        open_source(f"folder:{tmp_path}")
    assert open_source(f"folder:{tmp_path}#test").left_out == {"next to the splits": stray}


@pytest.mark.parametrize(
    ("suffix", "remedy"), [("tar", "webdataset:"), ("parquet", "parquet:"), ("csv", "labels come")]
)
def test_other_files(tmp_path: Path, suffix: str, remedy: str) -> None:
    """Files that another source reads are named with that source."""
    file = tmp_path / f"train.{suffix}"
    file.write_text("x")
    for place in (tmp_path, file):
        with one_line(f"; (write )?{remedy}"):
            open_source(f"folder:{place}")


def test_stray_image(tmp_path: Path) -> None:
    """Images next to folders cost an explanation, however many there are."""
    for name in ("train/ant", "train/bee", "test/ant"):
        write_image(tmp_path / name / "1.png", 1)
    write_image(tmp_path / "logo.png", 2)
    assert "1 next to the splits" in open_source(f"folder:{tmp_path}").notes()[0]
    write_image(tmp_path / "train" / "cover.png", 2)
    inner = open_source(f"folder:{tmp_path / 'train'}")
    assert "no class folder holds cover.png" in inner.notes()[0]
    for number in range(11):
        write_image(tmp_path / "train" / f"{number}.png", number)
    inner = open_source(f"folder:{tmp_path / 'train'}")
    assert "no class folder holds 0.png, 1.png" in inner.why_unlabelled


def test_one_class_folder(tmp_path: Path) -> None:
    """The reason names the folder, which may hold the classes."""
    write_image(tmp_path / "all" / "ant" / "1.png", 1)
    source = open_source(f"folder:{tmp_path}")
    assert f"one class folder, all; give two or more, or {tmp_path}/all" in source.why_unlabelled
    assert not source.notes()


@pytest.mark.parametrize("name", ["voc", "parquet", "hf", "webdataset", "folder"])
def test_folder_named_as_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_image(tmp_path / name / "1.png", 7)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"write \./{name}$"):
        open_source(name)
    assert reds_of(open_source(f"./{name}")) == [7]


def test_parquet_folder(tmp_path: Path) -> None:
    names = ["ant", "bee"]
    write_parquet(tmp_path / "train-00000-of-00001.parquet", [3, 4, 5], [1, 0, 1], names)
    write_parquet(tmp_path / "validation-00000-of-00001.parquet", [6], [0], names)
    train = open_source(f"parquet:{tmp_path}", "train")
    test = open_source(f"parquet:{tmp_path}", "validation")
    assert train.splits == ["train", "val"]
    assert train.class_names == names
    assert labels_of(train) == [1, 0, 1]
    assert train.paths == ["3.png", "4.png", "5.png"]
    assert reds_of(train) == [3, 4, 5]
    assert reds_of(test) == [6]
    assert train.fingerprint != test.fingerprint


@pytest.mark.parametrize(
    ("folders", "file", "count"),
    [
        (("data/000", "data/001"), "train-0", 2),
        (("small", "large"), "train-0", None),
        (("cifar10", "cifar100"), "train-0", None),
        (("year=2025/month=may", "year=2026/month=june"), "part-0", 2),
    ],
)
def test_parquet_folders(
    tmp_path: Path, folders: tuple[str, str], file: str, count: int | None
) -> None:
    """Numbered folders are one data set, like those of files that name no split; train files of
    folders with other names are not mixed."""
    for number, name in enumerate(folders):
        (tmp_path / name).mkdir(parents=True)
        write_parquet(tmp_path / name / f"{file}.parquet", [number], [number])
    if count is None:
        with one_line("its split train has files in "):
            open_source(f"parquet:{tmp_path}")
        assert len(open_source(f"parquet:{tmp_path / folders[1]}")) == 1
    else:
        assert len(open_source(f"parquet:{tmp_path}")) == count


@pytest.mark.parametrize("file", ["part-0", "train-0"])
def test_parquet_partitions(tmp_path: Path, file: str) -> None:
    """Partitions are one data set, whatever their folders are called."""
    for number, name in enumerate(("year=2025/month=may", "year=2026/month=june")):
        (tmp_path / name).mkdir(parents=True)
        write_parquet(tmp_path / name / f"{file}.parquet", [number], [number])
    assert len(open_source(f"parquet:{tmp_path}")) == 2
