"""Groups of images are read as they were written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import ArraySource, open_source
from hexa.data.sources import groups
from hexa.data.sources.groups import groups_of
from hexa.data.sources.source import Subset
from tests.data.image_files import saved
from tests.data.sources.test_webdataset import pack
from tests.refusals import one_line


def refused(said: str, *asked: Any) -> None:
    with pytest.raises(UserError, match=said):
        groups_of(*asked)


def csv(folder: Path, text: str | bytes, name: str = "groups.csv") -> str:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return str(folder / name)


def together(names: Sequence[str | None]) -> list[set[int]]:
    """For each image the images of its group; an image without a group is alone."""
    return [
        {other for other, group in enumerate(names) if other == image or group == name is not None}
        for image, name in enumerate(names)
    ]


FIVE = ArraySource(torch.zeros(5, 3, 2, 2, dtype=torch.uint8), name="five")
NAMES = FIVE.paths


@pytest.mark.parametrize(
    "text",
    [
        "path,group\n{0},a\n{1},b\n{3},a\n{2},\n",
        'Group,"Path"\r\na,{0}\r\na,{3}\r\nb,{1}\r\n\r\n',
        "\ufeffpath,more,group\n{0},x,a\n{0},y,a\n{3},,a\n",
        'path,group\n"{0}","a, and ""more"""\n{3},"a, and ""more"""\n',
    ],
)
def test_group_csv_dialects(tmp_path: Path, text: str) -> None:
    found = groups_of(csv(tmp_path, text.format(*NAMES)), FIVE)
    assert together(found) == [{0, 3}, {1}, {2}, {0, 3}, {4}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "path,group\n{0},a\nelse.png,a\nother.png,b\n",
            r"2 rows name images that are not in .*, such as 'else\.png'; write names like 'five/",
        ),
        (
            "path,group\n{0},a\n{1},a\n{0},b\n",
            "'five/train/000000' is both in group 'a' and in 'b'; give each image one group",
        ),
        ("{0},a\n{1},a\n", "its first row must name the columns path and group"),
        ("path;group\n{0};a\n", "separated by a comma; it names 'path;group'"),
        ("path,group\n{0};a\n", "line 2 lacks a column; give path and group"),
        (b"\xff\xfe{\x000", "is not UTF-8 text"),
        (b"x" * (1 << 20), "is not CSV .field larger than field limit"),
        ('"' + "\n" * 200_000, "is not CSV .field larger than field limit"),
    ],
)
def test_invalid_group_tables(tmp_path: Path, text: str | bytes, words: str) -> None:
    """A table that does not fit these images is refused in one line."""
    path = csv(tmp_path, text.format(*NAMES) if isinstance(text, str) else text)
    with one_line(words) as caught:
        groups_of(path, FIVE)
    assert str(caught.value).startswith(f"--groups {path}: ")
    assert len(str(caught.value)) < 500


def test_unreadable_group_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is not a regular file is refused in one line."""
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        (str(tmp_path), "is not a file"),
        (str(tmp_path / "pipe"), "is not a file"),
        (str(tmp_path / "none.csv"), r"No such file.*; give FILE\.csv, column:NAME or key:NAME"),
        ("\0", "cannot be read"),
        ("column:patient", "data 'five': has no column 'patient': parquet sources have columns"),
    ):
        refused(words, name, FIVE)
    monkeypatch.setattr(groups, "_MOST_BYTES", 10)
    refused("20 bytes, at most 10 are read", csv(tmp_path, "x" * 20), FIVE)


def test_ambiguous_image_names(tmp_path: Path) -> None:
    """Names that several images have cannot be given groups by a table."""
    source = ArraySource(torch.zeros(3, 3, 2, 2, dtype=torch.uint8))
    source.paths = ["x.png", "x.png", "y.png"]
    refused(
        r"several images of .* are called 'x\.png'",
        csv(tmp_path, "path,group\ny.png,a\nx.png,a\n"),
        source,
    )


PICTURE = saved(Image.new("RGB", (4, 4)), "PNG")


NAN = float("nan")


@pytest.mark.parametrize(
    "values", [["a", "b", "a", None, "b", None], [7.5, 8.0, 7.5, NAN, 8.0, NAN]]
)
def test_parquet_group_column(tmp_path: Path, values: list[Any]) -> None:
    images = [{"bytes": PICTURE, "path": f"{number}.png"} for number in range(6)]
    table = pa.table({"image": images, "patient": values})
    pq.write_table(table.slice(0, 4), tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(table.slice(4), tmp_path / "train-00001-of-00002.parquet")
    source = open_source(f"parquet:{tmp_path}")
    found = together(groups_of("column:patient", source))
    assert found == [{0, 2}, {1, 4}, {0, 2}, {3}, {1, 4}, {5}]
    refused("has no column 'patent'; did you mean 'patient'", "column:patent", source)
    refused("the column 'image' cannot be read as numbers or text", "column:image", source)


def test_webdataset_group_key(tmp_path: Path) -> None:
    told: list[Any] = [
        {"patient": 3, "label": 1},
        {"patient": "x"},
        {"patient": 3},
        {"patient": [3]},
        ["patient"],
    ]
    files: dict[str, bytes] = {}
    for number, value in enumerate(told):
        files |= {
            f"{number}.png": PICTURE,
            f"{number}.json": json.dumps(value).encode(),
            f"{number}.cls": b"1",
        }
    pack(tmp_path / "train-0.tar", files)
    pack(
        tmp_path / "train-1.tar",
        {"a.png": PICTURE, "a.json": b"{", "b.json": b'{"patient": "x"}', "b.png": PICTURE},
    )
    source = open_source(f"webdataset:{tmp_path}")
    found = together(groups_of("key:patient", source))
    assert found == [{0, 2}, {1, 6}, {0, 2}, {3}, {4}, {5}, {1, 6}]
    refused(r"none of its \.json files has a text or number 'place'", "key:place", source)
    refused("has no column 'patient'", "column:patient", source)


def test_subset_groups(tmp_path: Path) -> None:
    """A table of all images also works for a subset, as with a holdout of the monitor."""
    rows = [f"{name},{group}\n" for name, group in zip(NAMES, "abaab", strict=True)]
    path = csv(tmp_path, "path,group\n" + "".join(rows))
    part = Subset(FIVE, np.array([4, 2, 1]))
    assert together(groups_of(path, part)) == [{0, 2}, {1}, {0, 2}]
