"""Parquet files, and folders that `datasets` wrote, as accidents and strangers make them."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.test_parquet import bomb
from tests.torture.harness import Tally, damaged, hexa
from tests.torture.looking import Zoo, bitmap, outcome

tables, saved = Zoo(), Zoo()
GROUP = "Parquet files"
ROWS = [{"bytes": bitmap(0), "path": "0.bmp"}, {"bytes": bitmap(1), "path": "1.bmp"}]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def written(root: Path, metadata: bytes | None = None, name: str = "train.parquet", **columns: Any) -> str:
    columns = {"image": ROWS, **columns}
    table = pa.table({key: pa.array(column) if isinstance(column, list) else column for key, column in columns.items()})
    pq.write_table(table.replace_schema_metadata(None if metadata is None else {"huggingface": metadata}), root / name)
    return f"parquet:{root}"


def named(root: Path, names: object, labels: list[int] | None = None) -> str:
    """Two images of the classes 0 and 1, and what the metadata call the classes."""
    features = {"info": {"features": {"label": {"names": names}}}}
    return written(root, json.dumps(features).encode(), label=labels or [0, 1])


@tables("^3 images, 1 unreadable, labels")
def a_row_without_image(root: Path) -> str:
    return written(root, image=[*ROWS, None], label=[0, 1, 1])


@tables("^3 images, 1 unreadable, labels")
def a_row_without_bytes(root: Path) -> str:
    return written(root, image=[*ROWS, {"bytes": None, "path": None}], label=[0, 1, 1])


@tables("^2 images, 0 unreadable, no labels")
def a_row_without_label(root: Path) -> str:
    return written(root, label=[0, None])


@tables("^2 images, 0 unreadable, no labels")
def no_label_in_any_row(root: Path) -> str:
    return written(root, label=pa.array([None, None], pa.uint8()))


@tables("^2 images, 2 unreadable, labels")
def nothing_but_rows_without_image(root: Path) -> str:
    return written(root, image=pa.array([None, None], IMAGE), label=[0, 1])


@tables(r"^2 images, 0 unreadable, labels \[0, 255\]")
def labels_without_sign(root: Path) -> str:
    return written(root, label=pa.array([0, 255], pa.uint8()))


@tables("^refused: .*the label 18446744073709551615 .1.bmp. is not a class number")
def a_label_of_64_bits_without_sign(root: Path) -> str:
    return written(root, label=pa.array([0, 2**64 - 1], pa.uint64()))


@tables("^refused: .*the label 2000000000 ")
def a_label_of_two_billion(root: Path) -> str:
    return written(root, label=[0, 2_000_000_000])


@tables("^2 images, 0 unreadable, no labels")
def labels_that_are_not_numbers_of_classes(root: Path) -> str:
    return written(root, label=[0.5, float("nan")], labels=[[1], [2]], target=["a", "b"])


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def metadata_that_are_not_json(root: Path) -> str:
    return written(root, b"{", label=[0, 1])


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def metadata_that_are_not_utf_8(root: Path) -> str:
    return written(root, b"\xff\xfe\0", label=[0, 1])


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def metadata_that_are_a_list(root: Path) -> str:
    return written(root, b'["info"]', label=[0, 1])


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def metadata_that_are_lists_in_lists(root: Path) -> str:
    return written(root, b"[" * 200_000, label=[0, 1])


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def names_that_are_a_number(root: Path) -> str:
    return named(root, 7)


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def names_under_keys_that_are_not_numbers(root: Path) -> str:
    return named(root, {"a": "b"})


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def fewer_names_than_classes(root: Path) -> str:
    return named(root, ["a"])


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]$")
def names_of_a_million_classes(root: Path) -> str:
    return named(root, ["a"] * 1_000_000)


@tables(r"labels \[0, 1\] of \['a', 'b', 'c'\]$")
def more_names_than_classes(root: Path) -> str:
    return named(root, ["a", "b", "c"])


@tables("^refused: .*no images in")
def no_rows(root: Path) -> str:
    return written(root, image=pa.array([], IMAGE), label=pa.array([], pa.int64()))


@tables("^refused: .*no image column.*its columns: none")
def no_columns(root: Path) -> str:
    pq.write_table(pa.table({}), root / "train.parquet")
    return f"parquet:{root}"


@tables("^refused: .*no image column")
def bytes_that_are_numbers(root: Path) -> str:
    return written(root, image=[{"bytes": 10**12, "path": "a"}])


@tables("^refused: .*no image column")
def bytes_that_are_text(root: Path) -> str:
    return written(root, image=[{"bytes": "x", "path": "a"}])


@tables("^2 images, 0 unreadable")
def paths_that_are_numbers(root: Path) -> str:
    return written(root, image=[{"bytes": bitmap(), "path": 3}, {"bytes": bitmap(), "path": None}])


@tables("^refused: .*cannot read .*train.parquet")
def paths_that_are_not_utf_8(root: Path) -> str:
    paths = pa.array([b"\xff", b"\xfe"]).view(pa.string())
    return written(root, image=pa.StructArray.from_arrays([pa.array([bitmap()] * 2), paths], ["bytes", "path"]))


@tables(r"^2 images, 0 unreadable, labels \[0, 1\]")
def types_with_long_offsets(root: Path) -> str:
    long = pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())])
    return written(root, image=pa.array(ROWS, long), label=[0, 1])


@tables("^2 images, 0 unreadable")
def types_of_one_length(root: Path) -> str:
    one = pa.struct([("bytes", pa.binary(len(bitmap()))), ("path", pa.string())])
    return written(root, image=pa.array(ROWS, one))


@tables("^2 images, 0 unreadable")
def bytes_from_a_dictionary(root: Path) -> str:
    columns = [pa.array([bitmap(), bitmap()]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()]
    return written(root, image=pa.StructArray.from_arrays(columns, ["bytes", "path"]))


@tables(r"^4 images, 0 unreadable, labels \[0, 1, 2, 3\]$")
def files_whose_numbers_have_other_lengths(root: Path) -> str:
    written(root, name="train-0.parquet", label=pa.array([0, 1], pa.int32()))
    return written(root, name="train-1.parquet", label=pa.array([2, 3], pa.uint64()))


@tables("^refused: .*cannot read .*train-0.parquet, .*train-1.parquet")
def files_with_other_columns(root: Path) -> str:
    written(root, name="train-0.parquet", label=[0, 1])
    pq.write_table(pa.table({"picture": ROWS, "label": ["a", "b"]}), root / "train-1.parquet")
    return f"parquet:{root}"


@tables("^refused: .*cannot read")
def two_columns_of_one_name(root: Path) -> str:
    table = pa.Table.from_arrays([pa.array(ROWS), pa.array(ROWS)], names=["image", "image"])
    pq.write_table(table, root / "train.parquet")
    return f"parquet:{root}"


@tables("^2 images, 0 unreadable")
def a_folder_whose_name_looks_like_a_column(root: Path) -> str:
    (root / "label=7").mkdir()
    return written(root / "label=7", label=[0, 1])


@tables("^refused: .*no .parquet files in")
def a_pipe_called_like_a_table(root: Path) -> str:
    os.mkfifo(root / "train.parquet")
    return f"parquet:{root}"


@tables("^refused: .*train.parquet unpacks to more than 100,000,000 bytes, the limit; allow more with")
def kilobytes_that_unpack_to_gigabytes(root: Path) -> str:
    return f"parquet:{bomb(root / 'train.parquet', 4, 3000)},bytes=100000000"


@tables("^refused: .*cannot read")
def a_footer_that_claims_gigabytes(root: Path) -> str:
    spec = written(root)
    content = (root / "train.parquet").read_bytes()
    (root / "train.parquet").write_bytes(content[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1")
    return spec


@pytest.mark.parametrize(("make", "said"), tables.cases)
def test_parquet_files(tmp_path: Path, tally: Tally, make: Callable[[Path], str], said: str) -> None:
    assert re.search(said, outcome(make(tmp_path), GROUP, tally))


@pytest.mark.parametrize("count", [20, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_parquet_files(tmp_path: Path, tally: Tally, count: int) -> None:
    generator, path = Random(count), tmp_path / "train.parquet"
    features = json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}})
    table = pa.table({"image": ROWS * 20, "label": [0, 1] * 20}).replace_schema_metadata({"huggingface": features})
    whole = []
    for compression in ("none", "snappy", "zstd", "gzip"):
        for dictionary in (False, True):
            pq.write_table(table, path, compression=compression, use_dictionary=dictionary, row_group_size=17)
            whole.append(path.read_bytes())
    for _ in range(count):
        content = generator.choice(whole)
        if generator.random() < 0.5:
            content = damaged(content, generator, whole)
        else:  # the footer, which says where everything is
            data, length = bytearray(content), struct.unpack("<I", content[-8:-4])[0]
            for _ in range(generator.choice((1, 2, 4))):
                data[len(data) - 8 - generator.randrange(length)] = generator.randrange(256)
            content = bytes(data)
        path.write_bytes(content)
        outcome(f"parquet:{path}", "damaged Parquet files", tally)


def dataset(root: Path, features: Mapping[str, Any] | None = None, **columns: list[Any]) -> str:
    """A folder as `save_to_disk` writes it."""
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"image": datasets.Image(), **(features or {})})
    datasets.Dataset.from_dict({"image": ROWS, **columns}, features=kinds).save_to_disk(root / "set")
    return f"hf:{root / 'set'}"


def rewritten(root: Path, spec: str, column: str, values: pa.Array) -> str:
    """With other values than `datasets` itself would write."""
    file = next((root / "set").glob("*.arrow"))
    table = pa.ipc.open_stream(file.read_bytes()).read_all()
    table = table.set_column(table.column_names.index(column), table.schema.field(column), values)
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return spec


def value(kind: str) -> Any:
    return pytest.importorskip("datasets").Value(kind)


@saved("^3 images, 1 unreadable, no labels")
def rows_without_image_and_label(root: Path) -> str:
    return dataset(root, {"label": value("uint64")}, image=[*ROWS, None], label=[1, None, 2])


@saved("^refused: .*the label 18446744073709551615 ")
def a_label_of_64_bits(root: Path) -> str:
    spec = dataset(root, {"label": value("uint64")}, label=[0, 1])
    return rewritten(root, spec, "label", pa.array([0, 2**64 - 1], pa.uint64()))


@saved(r"^2 images, 0 unreadable, labels \[200, 0\]")
def labels_of_eight_bits_without_sign(root: Path) -> str:
    return dataset(root, {"label": value("uint8")}, label=[200, 0])


@saved("^refused: .*a row names /dev/zero, which is outside of the data set")
def images_that_are_devices_and_what_is_not_there(root: Path) -> str:
    rows = [{"bytes": None, "path": path} for path in ("/dev/zero", "https://localhost/a.png")]
    return rewritten(root, dataset(root), "image", pa.array(rows, IMAGE))


@saved("^refused: .*cannot be read")
def a_description_of_lists_in_lists(root: Path) -> str:
    spec = dataset(root)
    (root / "set" / "dataset_info.json").write_text("[" * 200_000)
    return spec


@saved("^refused: .*names /dev/zero, which is outside of the data set")
def a_state_that_names_files_elsewhere(root: Path) -> str:
    spec = dataset(root)
    state = json.loads((root / "set" / "state.json").read_text())
    state["_data_files"] = [{"filename": "/dev/zero"}]
    (root / "set" / "state.json").write_text(json.dumps(state))
    return spec


@pytest.mark.parametrize(("make", "said"), saved.cases)
def test_folders_of_datasets(tmp_path: Path, tally: Tally, make: Callable[[Path], str], said: str) -> None:
    assert re.search(said, outcome(make(tmp_path), "folders of datasets", tally))


@pytest.mark.parametrize("count", [13, pytest.param(1500, marks=pytest.mark.slow)])
def test_damaged_folders_of_datasets(tmp_path: Path, tally: Tally, count: int) -> None:
    spec = dataset(tmp_path, {"label": value("int64")}, image=ROWS * 20, label=[0, 1] * 20)
    generator, place = Random(count), tmp_path / "set"
    whole = {file: file.read_bytes() for file in place.iterdir()}
    tables = [file for file in whole if file.suffix == ".arrow"]
    for _ in range(count):
        file = generator.choice([*whole, *tables * 5])
        file.write_bytes(damaged(whole[file], generator, [whole[file]]))
        outcome(spec, "damaged folders of datasets", tally)
        file.write_bytes(whole[file])


@pytest.mark.slow
def test_a_row_without_image_is_left_out_by_the_command_line(tmp_path: Path, tally: Tally) -> None:
    written(tmp_path, image=[*ROWS * 50, None], label=[0, 1] * 50 + [1])
    written(tmp_path, name="test.parquet", image=ROWS, label=[0, 1])
    ended = hexa("evaluate", "knn", "pixels:8", "--data", f"parquet:{tmp_path}")
    tally.input(GROUP, ended.code == 0)
    assert ended.code == 0
    assert "1 of 101 training images could not be read" in ended.out + ended.err
