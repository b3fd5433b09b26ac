"""Parquet files and tar shards as accidents and strangers make them: nothing is lost silently, or unpacked."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.image_files import bitmap
from tests.data.sources.test_parquet import bomb
from tests.data.sources.test_webdataset import pack
from tests.torture.harness import Tally
from tests.torture.test_sources import Case, check, each, pipe

Make = Callable[[Path], str]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
ROWS = [{"bytes": bitmap(0), "path": "0.bmp"}, {"bytes": bitmap(1), "path": "1.bmp"}]

# -- Parquet files ----------------------------------------------------------------------------------------------------


def _table(metadata: bytes | None = None, **columns: Any) -> Make:
    def make(root: Path) -> str:
        made = {"image": ROWS, "label": [0, 1]} | columns
        table = pa.table(
            {key: pa.array(one) if isinstance(one, list) else one for key, one in made.items()}
        )
        named = table.replace_schema_metadata(
            None if metadata is None else {"huggingface": metadata}
        )
        pq.write_table(named, root / "train.parquet")
        return f"parquet:{root}"

    return make


def _names(names: object) -> Make:
    """Two images of the classes 0 and 1, and what the metadata call the classes."""
    return _table(json.dumps({"info": {"features": {"label": {"names": names}}}}).encode())


def _footer(root: Path) -> str:
    spec = _table()(root)
    content = (root / "train.parquet").read_bytes()
    (root / "train.parquet").write_bytes(content[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1")
    return spec


def _struct(data: pa.Array, paths: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([data, paths], ["bytes", "path"])


_READ = r"^2 images, 0 unreadable, labels \[0, 1\]$"
_BYTES = pa.array([bitmap(), bitmap()])
_OTHER_TYPES = {
    "long offsets": pa.array(
        ROWS, pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())])
    ),
    "one length": pa.array(
        ROWS, pa.struct([("bytes", pa.binary(len(bitmap()))), ("path", pa.string())])
    ),
    "a dictionary": _struct(_BYTES.dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()),
    "paths of numbers": pa.array(
        [{"bytes": bitmap(), "path": 3}, {"bytes": bitmap(), "path": None}]
    ),
}
TABLES: list[Case] = [
    (
        "no image",
        _table(image=[*ROWS, None, {"bytes": None, "path": None}], label=[0] * 4),
        "^4 images, 2 unreadable",
    ),
    ("no label", _table(label=[0, None]), "^2 images, 0 unreadable, no labels"),
    *(
        (f"metadata {one[:2]!r}", _table(one), _READ)
        for one in (b"{", b"\xff\xfe\0", b'["info"]', b"[" * 200_000)
    ),
    *(
        (f"names {str(one)[:9]}", _names(one), _READ)
        for one in (7, {"a": "b"}, ["a"], ["a"] * 100_001)
    ),
    *(
        (f"image of {name}", _table(image=one), "^2 images, 0 unreadable")
        for name, one in _OTHER_TYPES.items()
    ),
    (
        "a pipe",
        lambda root: pipe("train.parquet", root) or f"parquet:{root}",
        "^refused: .*no .parquet files in",
    ),
    ("a footer of gigabytes", _footer, "^refused: .*cannot read"),
    (
        "kilobytes that unpack to gigabytes",
        lambda root: f"parquet:{bomb(root / 'a.parquet', 4, 3000)},bytes=100000000",
        "^refused: .*a.parquet .* 100,000,000 bytes",
    ),
]

# -- tar shards -------------------------------------------------------------------------------------------------------

MEMBERS = {"0.bmp": bitmap(0), "0.cls": b"0", "1.bmp": bitmap(1), "1.cls": b"1"}


def _labelled(*labels: bytes, kind: str = "cls") -> Make:
    members = {f"{number}.{kind}": label for number, label in enumerate(labels)}
    members |= {f"{number}.bmp": bitmap(number) for number in range(len(labels))}
    return lambda root: f"webdataset:{pack(root / 'a.tar', members)}"


def headers_of(content: bytes | bytearray) -> list[int]:
    return [at for at in range(0, len(content), 512) if content[at + 257 : at + 262] == b"ustar"]


def mend(content: bytearray, headers: Sequence[int]) -> None:
    """Make the sums of headers right again."""
    for at in headers:
        content[at + 148 : at + 156] = b" " * 8
        content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])


def _edited(
    member: int, *edits: tuple[int, bytes], cut: int | None = None, mended: bool = True
) -> Make:
    """A shard with these bytes (from the header of a member on) changed, and cut so far behind it."""

    def make(root: Path) -> str:
        content = bytearray(pack(root / "a.tar", MEMBERS, tarfile.USTAR_FORMAT).read_bytes())
        headers = headers_of(content)
        for behind, new in edits:
            content[headers[member] + behind : headers[member] + behind + len(new)] = new
        if mended:
            mend(content, headers)
        (root / "a.tar").write_bytes(content[: None if cut is None else headers[member] + cut])
        return f"webdataset:{root}"

    return make


def _member(**fields: object) -> Make:
    """Two images, and between them a third whose header has these fields."""

    def make(root: Path) -> str:
        with tarfile.open(root / "a.tar", "w") as archive:
            for number, name in enumerate(("0.bmp", "odd.bmp", "1.bmp")):
                member = tarfile.TarInfo(name)
                member.size = len(bitmap())
                for field, value in fields.items() if number == 1 else ():
                    setattr(member, field, value)
                archive.addfile(member, io.BytesIO(bitmap(number)) if member.isreg() else None)
        return f"webdataset:{root}"

    return make


def _headers_of_headers(root: Path) -> str:
    member = tarfile.TarInfo("x")
    member.type = tarfile.XHDTYPE
    content = pack(root / "a.tar", MEMBERS, tarfile.USTAR_FORMAT).read_bytes()
    (root / "a.tar").write_bytes(member.tobuf(tarfile.USTAR_FORMAT) * 5000 + content)
    return f"webdataset:{root}"


_INCOMPLETE = "^refused: .*is not a complete, uncompressed tar file"
_SPARSE = b"%011o\0%011o\0" % (0, len(bitmap()))
SHARDS: list[Case] = [
    (
        "a label of two billion",
        _labelled(b"0", b"2000000000"),
        "^refused: .*the label 2000000000 .*a.tar/1.bmp",
    ),
    (
        "labels of other kinds",
        _labelled(b'"3"', b"1.0", b"NaN", b"", b"\xff\0"),
        "^5 images, 0 unreadable, no labels$",
    ),
    (
        "a long description",
        _labelled(b"0", b" " * 2_000_000, kind="json"),
        "a header or label of 2000000 bytes",
    ),
    ("a hard link", _member(type=tarfile.LNKTYPE, linkname="0.bmp"), "^3 images, 1 unreadable"),
    ("a name that leads out", _member(name="../../../etc/\udcff\n.bmp"), "^3 images, 0 unreadable"),
    (
        "holes of GNU",
        _edited(2, (156, b"S"), (386, _SPARSE), (482, b"\0%011o\0" % 8**10)),
        "^2 images, 1 unreadable",
    ),
    ("a size beyond the file", _edited(2, (124, b"\x80\0\0\0\x7f" + b"\xff" * 7)), _INCOMPLETE),
    ("headers of headers", _headers_of_headers, _INCOMPLETE),
    ("cut in an image", _edited(2, cut=520), _INCOMPLETE),
    (
        "no tar file",
        lambda root: (root / "a.tar").write_bytes(b"x" * 2000) and f"webdataset:{root}",
        _INCOMPLETE,
    ),
    (
        "ranges",
        lambda root: f"webdataset:{root}/{'{0..9}' * 10}.tar",
        "^refused: .*expands to more than 100,000 shards",
    ),
]


@each(TABLES)
def test_hostile_parquet_files(
    make: Callable[[Path], object], said: str, tmp_path: Path, tally: Tally
) -> None:
    check("Parquet files", make(tmp_path), said, tally)


@each(SHARDS)
def test_hostile_tar_shards(
    make: Callable[[Path], object], said: str, tmp_path: Path, tally: Tally
) -> None:
    check("tar shards", make(tmp_path), said, tally)
