"""Unpacked size of Parquet files: counted while reading, and limited."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.sources import decode as decoding
from hexa.data.sources.decode import DecodeError
from tests.data.image_files import bitmap
from tests.data.sources.looks import labels_of
from tests.refusals import one_line


def bomb(path: Path, megabytes: int, rows: int, compression: str = "zstd") -> Path:
    """One value of zeros, repeated by a dictionary and run lengths."""
    image = {"bytes": bytes(megabytes << 20), "path": "a.bmp"}
    indices = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array([image["bytes"]])
    )
    column = pa.StructArray.from_arrays([indices, pa.array(["a.bmp"] * rows)], ["bytes", "path"])
    # without the schema of Arrow, a reader takes the column for plain bytes
    pq.write_table(pa.table({"image": column}), path, compression=compression, store_schema=False)
    return path


def test_parquet_split_byte_limit(tmp_path: Path) -> None:
    """The limit is on all files of a split together."""
    for name in ("train-0", "train-1", "test-0"):
        bomb(tmp_path / f"{name}.parquet", 1, 10)
    assert len(open_source(f"parquet:{tmp_path},bytes=22000000")) == 20
    assert len(open_source(f"parquet:{tmp_path},bytes=11000000#test")) == 10
    with one_line("unknown option 'label=x'; .* must be called label"):
        open_source(f"parquet:{tmp_path},label=x")
    with pytest.raises(UserError, match=r"train-1.parquet unpacks to more than 11,000,000 bytes"):
        open_source(f"parquet:{tmp_path},bytes=11000000")


@pytest.mark.parametrize("in_struct", [False, True])
def test_parquet_claimed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_struct: bool
) -> None:
    """If the footer says that a file is too large, none of it is unpacked."""
    data = bitmap() + bytes(4_000_000)
    images = pa.array([{"bytes": data, "path": "a.bmp"}] if in_struct else [data])
    pq.write_table(
        pa.table({"image": images, "label": [0]}), tmp_path / "a.parquet", compression="zstd"
    )
    assert len(open_source(f"parquet:{tmp_path},bytes=4100000")) == 1
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *args, **kinds: pytest.fail("read"))
    with pytest.raises(UserError, match=r"a\.parquet unpacks to more than 3,000,000 bytes"):
        open_source(f"parquet:{tmp_path},bytes=3000000")


def test_parquet_oversized_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of more bytes than an image may have is unreadable."""
    source = open_source(f"parquet:{bomb(tmp_path / 'train.parquet', 1, 2)}")
    monkeypatch.setattr(decoding, "MOST_BYTES", 1_000_000)
    with pytest.raises(
        DecodeError, match=r"the file has 1,048,576 bytes; an image may have at most 1,000,000"
    ):
        source.encoded(0)


@pytest.mark.parametrize(
    "options", [{}, {"row_group_size": 33}, {"use_dictionary": False, "row_group_size": 1}]
)
def test_parquet_partial_reading(tmp_path: Path, options: dict[str, Any]) -> None:
    """The fingerprint written out from a table that is read whole."""
    path = tmp_path / "train.parquet"
    images = [
        None if number % 7 == 3 else bitmap(number % 256) + bytes(number) for number in range(100)
    ]
    rows = [{"bytes": data, "path": f"{number}.bmp"} for number, data in enumerate(images)]
    pq.write_table(pa.table({"label": list(range(100)), "image": rows}), path, **options)
    source = open_source(f"parquet:{tmp_path}")
    chunks = [
        chunk.field("bytes")
        for chunk in pq.read_table(path, columns=["image"]).column("image").chunks
    ]
    footer = pq.read_metadata(path)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    stamp = str([(group.num_rows, group.total_byte_size) for group in groups])
    contents = b"".join(b"no bytes in this row" if data is None else data for data in images)
    parts = [b"100", str(sum(chunk.nbytes for chunk in chunks)).encode(), stamp.encode(), contents]
    assert (
        source.fingerprint
        == hashlib.sha256(b"".join(part + b"\0" for part in parts)).hexdigest()[:16]
    )
    assert labels_of(source) == list(range(100))
    for number, data in enumerate(images):
        if data is not None:
            assert source.encoded(number) == data


def test_parquet_shared_memory_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The splits of a data set share half of the memory."""
    for name in ("train", "test"):
        bomb(tmp_path / f"{name}.parquet", 1, 10)
    most = pa.total_allocated_bytes() + (12 << 20)
    monkeypatch.setattr("hexa.data.sources.parquet.usable_memory", lambda: 2 * most)
    held = open_source(f"parquet:{tmp_path}")
    with pytest.raises(UserError, match=r"test.parquet unpacks to more than"):
        open_source(f"parquet:{tmp_path}#test")
    assert len(held) == 10
    del held
    assert len(open_source(f"parquet:{tmp_path}#test")) == 10


PEAK = """
import resource, sys
from hexa.data import open_source
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before = peak()
source = open_source(sys.argv[1])
print(len(source), peak() - before)
"""


@pytest.mark.slow
def test_parquet_reading_peak(tmp_path: Path) -> None:
    """Reading takes less than twice what a file unpacks to."""
    spec = f"parquet:{bomb(tmp_path / 'train.parquet', 16, 60)}"
    done = subprocess.run(
        [sys.executable, "-c", PEAK, spec], capture_output=True, text=True, check=True
    )
    rows, taken = map(int, done.stdout.split())
    assert rows == 60
    assert 60 * 16 << 20 <= taken < 2 * (60 * 16 << 20)
