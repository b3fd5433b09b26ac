"""Data sets as the `datasets` library writes them: nothing is fetched, they are built here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import open_source
from tests.data.image_files import saved
from tests.data.sources.looks import labels_of, reds_of
from tests.data.sources.test_opening import write_image
from tests.refusals import one_line

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def picture(value: int) -> bytes:
    return saved(Image.new("RGB", (8, 6), (value, 20, 200)), "PNG")


def table(values: list[int], **columns: tuple[Any, list[Any]]) -> Any:
    """Pictures of one colour each in a column `picture`, and further columns by name as (type, values)."""
    features = datasets.Features(
        {"picture": datasets.Image(), **{name: kind for name, (kind, _) in columns.items()}}
    )
    rows = {"picture": [{"bytes": picture(value), "path": None} for value in values]}
    return datasets.Dataset.from_dict(
        rows | {name: given for name, (_, given) in columns.items()}, features=features
    )


def labelled(values: list[int], labels: list[int]) -> Any:
    return table(values, label=(datasets.ClassLabel(names=["ant", "bee"]), labels))


@pytest.mark.parametrize("written", ["saved", "parquet"])
def test_huggingface_splits_and_labels(tmp_path: Path, written: str) -> None:
    """Splits, labels and names are those of the features."""
    train = labelled([3, 4, 5], [1, 0, 1])
    held = labelled([6], [0])
    if written == "saved":
        datasets.DatasetDict(train=train, validation=held).save_to_disk(tmp_path / "set")
    else:
        (tmp_path / "set").mkdir()
        train.to_parquet(tmp_path / "set" / "train-00000-of-00001.parquet")
        held.to_parquet(tmp_path / "set" / "validation-00000-of-00001.parquet")
    source = open_source(f"hf:{tmp_path / 'set'}")
    test = open_source(f"hf:{tmp_path / 'set'}#validation")
    assert source.splits == ["train", "val"]
    assert source.class_names == ["ant", "bee"]
    assert labels_of(source) == [1, 0, 1]
    assert reds_of(source) == [3, 4, 5]
    assert reds_of(test) == [6]
    assert source.paths == ["train/00000000", "train/00000001", "train/00000002"]
    assert source.fingerprint != test.fingerprint


def test_huggingface_own_decoder(tmp_path: Path) -> None:
    """16 bits are scaled, which PIL's own conversion does not do; `datasets` would hand over PIL's image."""
    data = saved(Image.fromarray(np.full((5, 5), 65535 // 2, dtype=np.uint16)), "PNG")
    rows = {"image": [{"bytes": data, "path": "a.png"}]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    made.save_to_disk(tmp_path / "set")
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert torch.equal(source.decode(0), torch.full((3, 5, 5), 127, dtype=torch.uint8))
    assert source.paths == ["a.png"]
    assert source.encoded(0) == data


def test_huggingface_row_selection(tmp_path: Path) -> None:
    """Rows that were picked and shuffled keep their images and labels."""
    made = (
        labelled(list(range(40)), [value % 2 for value in range(40)])
        .shuffle(seed=0)
        .select(range(7, 30))
    )
    made.save_to_disk(tmp_path / "set")
    source = open_source(f"hf:{tmp_path / 'set'}")
    assert reds_of(source) == [int(np.array(row["picture"])[0, 0, 0]) for row in made]
    assert labels_of(source) == list(made["label"])


def test_huggingface_image_folders(tmp_path: Path) -> None:
    for number, name in enumerate(
        ("train/ant/a.png", "train/bee/b.png", "test/ant/c.png", "test/bee/d.png")
    ):
        write_image(tmp_path / "set" / name, number)
    test = open_source(f"hf:{tmp_path / 'set'}", "test")
    assert test.paths == ["test/ant/c.png", "test/bee/d.png"]
    assert test.class_names == ["ant", "bee"]
    assert reds_of(test) == [2, 3]
    (tmp_path / "set").rename(tmp_path / "moved")
    assert open_source(f"hf:{tmp_path / 'moved'}", "test").fingerprint == test.fingerprint


@pytest.mark.parametrize("labels", [[-1, -1], None], ids=["hidden", "no column"])
def test_huggingface_unlabelled_test_split(tmp_path: Path, labels: list[int] | None) -> None:
    """If the test split has no labels, the validation split is used."""
    parts = {"train": labelled([1, 2], [0, 1]), "validation": labelled([3], [1])}
    parts["test"] = table([4, 5]) if labels is None else labelled([4, 5], labels)
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    test, hidden = (
        open_source(f"hf:{tmp_path / 'set'}#{split}") for split in ("test", "unlabeled")
    )
    assert reds_of(test) == [3]
    assert test.splits == ["train", "val", "unlabeled"]
    assert reds_of(hidden) == [4, 5]
    assert hidden.labels is None


def test_huggingface_single_file(tmp_path: Path) -> None:
    """A file is not looked for on the hub."""
    (tmp_path / "x.parquet").touch()
    with one_line("x.parquet is a file; give its folder, or parquet:"):
        open_source(f"hf:{tmp_path / 'x.parquet'}")


def test_huggingface_column_choice(tmp_path: Path) -> None:
    """If several columns are possible, the user must choose one."""
    fine = datasets.ClassLabel(names=list("abcd"))
    coarse = datasets.ClassLabel(names=["x", "y"])
    made = table([1, 2, 3], fine=(fine, [0, 3, 2]), coarse=(coarse, [0, 1, 1]))
    made.add_column(
        "mask", made.with_format("arrow")[:].column("picture"), feature=datasets.Image()
    ).save_to_disk(tmp_path / "set")
    name = f"hf:{tmp_path / 'set'}"
    with one_line("fine is not a column of type Image; its columns: .*fine .int64"):
        open_source(f"{name},image=fine")
    made.select_columns("fine").save_to_disk(tmp_path / "none")
    with one_line("no column is of type Image; .*write parquet:PATH"):
        open_source(f"hf:{tmp_path / 'none'}")
    with pytest.raises(
        UserError,
        match=r"each of picture, mask could be the image column; choose one.*,image=picture",
    ):
        open_source(name)
    with pytest.raises(
        UserError,
        match=r"each of fine, coarse could be the label column; .*set,image=mask,label=fine",
    ):
        open_source(f"{name},image=mask")
    source = open_source(f"{name},image=mask,label=coarse#train")
    assert labels_of(source) == [0, 1, 1]
    assert source.class_names == ["x", "y"]
