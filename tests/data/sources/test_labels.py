"""Labels of every kind against the numbers that they should get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hexa.data import open_source
from tests.data.image_files import bitmap
from tests.data.sources.looks import labels_of
from tests.data.sources.test_webdataset import pack

_WORDS = ["dog", "cat", "dog", "eel"]


def table(
    path: Path,
    labels: Any,
    label: str = "label",
    **columns: Any,
) -> None:
    """A Parquet file of one image a label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": bitmap(40 * row), "path": f"{row}.bmp"} for row in range(len(labels))]
    pq.write_table(pa.table({"image": images, label: labels} | columns), path)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_text_label_numbers(tmp_path: Path, kind: Any) -> None:
    """Words get numbers by their sorted names."""
    column = pa.array(_WORDS)
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    table(tmp_path / "train.parquet", column)
    table(tmp_path / "test.parquet", pa.array(["ant", "dog"]))
    train = open_source(f"parquet:{tmp_path}")
    test = open_source(f"parquet:{tmp_path}#test")
    assert train.class_names == test.class_names == ["ant", "cat", "dog", "eel"]
    assert labels_of(train) == [2, 1, 2, 3]
    assert labels_of(test) == [0, 2]
    assert train.notes() == []


@pytest.mark.parametrize(
    ("labels", "expected", "names"),
    [
        (pa.array([True, False, True]), [1, 0, 1], ["False", "True"]),
        (pa.array([True, True]), [1, 1], ["False", "True"]),
        (pa.array([3, 0, 7], pa.uint8()), [3, 0, 7], None),
        (pa.array([3, 0, 3]).dictionary_encode(), [3, 0, 3], None),
        (pa.array([False, True]).dictionary_encode(), [0, 1], ["False", "True"]),
        (pa.array(["Ko\u0308ln", "Bonn", "K\u00f6ln"]), [1, 0, 1], ["Bonn", "K\u00f6ln"]),
    ],
)
def test_other_label_types(
    tmp_path: Path, labels: Any, expected: list[int], names: list[str] | None
) -> None:
    table(tmp_path / "train.parquet", labels)
    source = open_source(f"parquet:{tmp_path}")
    assert labels_of(source) == expected
    assert source.class_names == names
    assert source.labels.dtype == np.int64


def test_mixed_label_types_note(tmp_path: Path) -> None:
    table(tmp_path / "train.parquet", pa.array(_WORDS))
    table(tmp_path / "test.parquet", pa.array([0, 1]))
    (note,) = open_source(f"parquet:{tmp_path}").notes()
    assert "the column 'label' holds int64 in one file and text in another" in note


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_parquet_byte_columns(tmp_path: Path, kind: Any) -> None:
    """Plain columns of bytes are images."""
    columns = {
        "hash": pa.array([b"ab", b"cd", b"ef"]),
        "image": pa.array([None, bitmap(1), bitmap(2)], kind),
        "label": pa.array(["b", "a", "b"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    source = open_source(f"parquet:{tmp_path}")
    assert labels_of(source) == [1, 0, 1]
    assert source.paths == [f"train/0000000{row}" for row in range(3)]
    assert int(source.decode(2)[0, 0, 0]) == 2


def samples(
    path: Path,
    labels: list[Any],
    kind: str,
) -> None:
    members: dict[str, bytes] = {}
    for row, label in enumerate(labels):
        members[f"{row}.bmp"] = bitmap(40 * row)
        if label is not None:
            text = json.dumps({"label": label}) if kind == "json" else str(label)
            members[f"{row}.{kind}"] = text.encode()
    pack(path, members)


@pytest.mark.parametrize("kind", ["cls", "json"])
@pytest.mark.parametrize(
    ("train", "expected", "names"),
    [
        (_WORDS, [2, 1, 2, 3], ["ant", "cat", "dog", "eel"]),
        ([3, 0, 1], [3, 0, 1], None),
        ([" red fox\n", "dog"], [2, 1], ["ant", "dog", "red fox"]),
        ([7, "dog"], [0, 2], ["7", "ant", "dog"]),
    ],
)
def test_webdataset_labels(
    tmp_path: Path, kind: str, train: list[Any], expected: list[int], names: list[str] | None
) -> None:
    samples(tmp_path / "train-0.tar", train, kind)
    samples(tmp_path / "test-0.tar", ["ant"] if names else [1], kind)
    source = open_source(f"webdataset:{tmp_path}")
    test = open_source(f"webdataset:{tmp_path}#test")
    if kind == "json" and names and " " in names[-1]:
        names = [" red fox\n", "ant", "dog"]  # text in JSON is taken as it is
        expected = [0, 2]
    assert labels_of(source) == expected
    assert source.class_names == names
    assert test.class_names == names
    assert labels_of(test) == [1 if names is None else names.index("ant")]


def test_webdataset_numeric_class_names(tmp_path: Path) -> None:
    """Classes called 7 and dog; the second shard of test has only the first."""
    for name, labels in (("train-0", ["7", "dog"]), ("test-0", ["dog", 7]), ("test-1", ["7"])):
        samples(tmp_path / f"{name}.tar", labels, "cls")
    for split, expected in (("train", [0, 1]), ("test", [1, 0, 0])):
        source = open_source(f"webdataset:{tmp_path}", split)
        assert labels_of(source) == expected
        assert source.class_names == ["7", "dog"]


def test_dictionary_encoded_label(tmp_path: Path) -> None:
    """Twenty thousand rows of a megabyte would be twenty gigabytes."""
    word = "x" * 2**20
    rows = 20_000
    labels = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([word]))
    pq.write_table(pa.table({"image": [bitmap()] * rows, "label": labels}), tmp_path / "a.parquet")
    source = open_source(f"parquet:{tmp_path / 'a.parquet'}")
    assert source.class_names == [word]
    assert len(source) == rows
