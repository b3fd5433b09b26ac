"""Tar shards as the webdataset package lays them out."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.sources.splits import files_by_split
from tests.data.image_files import saved
from tests.data.sources.looks import labels_of
from tests.refusals import one_line


def pack(
    path: Path,
    members: Mapping[str, bytes] | list[tuple[str, bytes]],
    layout: int = tarfile.PAX_FORMAT,
) -> Path:
    """A tar file of these members; a list may name one twice."""
    with tarfile.open(path, "w", format=layout) as archive:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def shard(path: Path, first: int, count: int = 3, label: str | None = "cls") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    members = {}
    for number in range(first, first + count):
        picture = saved(Image.new("RGB", (10, 6), (40 * (number % 5), 20, 200)), "PNG")
        members |= {f"part/{number:04d}.png": picture, f"part/{number:04d}.txt": b"a caption"}
        if label is not None:
            labels = {"cls": number % 5, "json": {"label": number % 5, "url": "x"}}
            members[f"part/{number:04d}.{label}"] = json.dumps(labels[label]).encode()
    pack(path, members)


@pytest.mark.parametrize("label", ["cls", "json"])
def test_webdataset_positions_and_splits(tmp_path: Path, label: str) -> None:
    """Images lie where the shards say."""
    for number in range(2):
        shard(tmp_path / f"train-{number:04d}.tar", 3 * number, label=label)
    shard(tmp_path / "val-0000.tar", 10, 2, label)
    source = open_source(f"webdataset:{tmp_path}")
    assert source.split == "train"
    assert source.splits == ["train", "val"]
    assert len(source) == 6
    assert labels_of(source) == [0, 1, 2, 3, 4, 0]
    assert source.paths[3] == "train-0001.tar/part/0003.png"
    for position in (4, 0, 5):
        image = source.decode(position)
        assert image.shape == (3, 6, 10)
        assert torch.equal(
            image[:, 0, 0], torch.tensor([40 * (position % 5), 20, 200], dtype=torch.uint8)
        )
    for split in ("val", "test"):
        assert len(open_source(f"webdataset:{tmp_path}", split)) == 2


def test_unlabelled_webdataset(tmp_path: Path) -> None:
    folder = tmp_path / "shards [2]"
    shard(folder / "a.tar", 0, label=None)
    source = open_source(f"webdataset:{folder}")
    assert source.labels is None
    assert source.splits == ["train"]
    assert len(source) == 3
    pack(folder / "a.tar", dict.fromkeys(("0.png", "1.png", "._0.png", "._1.png"), b"x"))
    assert open_source(f"webdataset:{folder}").left_out == {"hidden": 2}


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        ("00000.tar 00001.tar", "2 train"),
        ("train_0.tar train_1.tar test_0.tar", "2 train, 1 test"),
        ("train/0000.tar train/0001.tar test/0000.tar", "2 train, 1 test"),
        ("train/data.tar test/data.tar", "1 train, 1 test"),
        ("in1k-train-0.tar in1k-train-1.tar in1k-validation-0.tar", "2 train, 1 val"),
        ("cifar_train.tar cifar_test.tar cifar_val.tar", "1 train, 1 test, 1 val"),
        ("a/partial-train/0.tar a/partial-test/0.tar", "1 train, 1 test"),
        ("train/a/0.tar train/b/1.tar val/a/0.tar", "2 train, 1 val"),
        ("x.tar y.train.tar", "2 train"),
        ("test-of-train-0.tar test-of-val-0.tar", "1 test-train, 1 test-val"),
        ("my-test-sets/a-0.tar my-test-sets/a-1.tar", "2 train"),
        ("test/0.tar test/1.tar", "2 test"),
        ("cats-0.tar cats-1.tar", "2 train"),
        ("latest_0.tar trains_0.tar", "1 latest, 1 trains"),
        ("train0.tar train1.tar VAL0.tar", "2 train, 1 val"),
        ("0-train.tar 1-train.tar 0-test.tar", "2 train, 1 test"),
        ("train-0.tar train_mini-0.tar val-0.tar", "1 train, 1 train-mini, 1 val"),
        ("a1-train-0.tar a1-train-1.tar b-train.tar", "2 a1-train, 1 b-train"),
        ("train_images.tar test_images.tar", "1 train, 1 test"),
        ("train-0-of-2-ab12.tar train-1-of-2-cd34.tar", "2 train"),
        ("train-shard0.tar train-shard1.tar test.tar", "2 train, 1 test"),
        ("train-rank0-0.tar train-rank1-0.tar val-rank0-0.tar", "2 train, 1 val"),
        ("train-en.tar train-fr.tar val.tar", "2 train, 1 val"),
        ("train-a.tar train-1f0a9b.tar train.tar", "3 train"),
        ("in21k-train-w21-0.tar in21k-train-w22-0.tar in21k-train.tar", "3 train"),
        ("cifar10_train.tar cifar10_test.tar", "1 train, 1 test"),
        ("in10-train.tar in100-train.tar", "1 in10-train, 1 in100-train"),
        ("nyc-train-stations-0.tar nyc-bus-stops-0.tar", "2 train"),
        ("near-val-thorens-0.tar near-meribel-0.tar", "2 train"),
        ("train-0.tar extra-0.tar", "2 train"),
        ("train-0.tar eval-0.tar", "1 train, 1 eval"),
        ("0000.tar cats-0.tar", "1 numbers, 1 cats"),
        ("my-test-photos.tar", "1 train"),
        ("test/photos.tar", "1 train"),
        ("test.tar", "1 test"),
    ],
)
def test_splits_of_shards(names: str, splits: str) -> None:
    """A word in the name of a file decides, then one in the names of its folders; numbers are no splits."""
    found = files_by_split(map(Path, names.split()))
    assert {f"{len(files)} {name}" for name, files in found.items()} == {*splits.split(", ")}


@pytest.mark.parametrize(
    "names",
    [
        "train-0.tar test-0.tar extra-0.tar",
        "2020-test-campaign/0.tar 2021-survey/0.tar",
        "cifar_test-0.tar photos-0.tar",
        "val-thorens.tar meribel.tar",
    ],
)
def test_shards_of_test_and_no_split(names: str) -> None:
    """Files that may be test images are not mixed with files of no split."""
    with one_line("named as the split (test|val), but .* is not named as a split; rename or move"):
        files_by_split(map(Path, names.split()))


def test_webdataset_pattern(tmp_path: Path) -> None:
    """The files of a pattern are one data set; test shards are still a split."""
    for number, name in enumerate(("cam1_train", "cam2_train", "cam1_test")):
        shard(tmp_path / f"{name}.tar", 3 * number)
    with one_line("no split 'train'; .* such as .*#cam1-train$"):
        open_source(f"webdataset:{tmp_path}")
    for pattern in ("cam{1..2}_train", "*"):
        source = open_source(f"webdataset:{tmp_path}/{pattern}.tar")
        assert source.split == "train"
        assert len(source) == 6
    assert len(open_source(f"webdataset:{tmp_path}/cam1*.tar#test")) == 3


@pytest.mark.parametrize("second", ["b.jpg", "b.PNG"])
def test_webdataset_duplicate_sample_images(tmp_path: Path, second: str) -> None:
    """Two images of one sample are refused."""
    pack(
        tmp_path / "train.tar",
        [(name, b"1") for name in ("a.jpg", "b.jpg", "b.cls", "b.seg.png", second)],
    )
    with pytest.raises(
        UserError,
        match=rf"train.tar: b.jpg and {second} are images of one sample, b; each sample has",
    ):
        open_source(f"webdataset:{tmp_path}")


def test_webdataset_without_default_split(tmp_path: Path) -> None:
    """If no split is called train or test, the user chooses."""
    for name in ("cats", "dogs"):
        shard(tmp_path / f"{name}-0.tar", 0)
    with one_line("no split 'train'; choose one of its splits"):
        open_source(f"webdataset:{tmp_path}")
    assert open_source(f"webdataset:{tmp_path}#dogs").split == "dogs"


def test_webdataset_missing_shard(tmp_path: Path) -> None:
    """Every file of a range must exist."""
    for number in (0, 2):
        shard(tmp_path / f"data-{number}.tar", 0)
    with one_line("no such shard: .*data-1.tar"):
        open_source(f"webdataset:{tmp_path}/data-{{0..2}}.tar")
    assert len(open_source(f"webdataset:{tmp_path}/data-*.tar")) == 6
