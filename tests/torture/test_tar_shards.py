"""Tar shards as accidents and strangers make them: nothing is lost silently, unpacked, or read in circles."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.decode import DecodeError
from tests.data.test_webdataset import pack
from tests.torture.harness import Tally, damaged, hexa
from tests.torture.looking import Zoo, bitmap, outcome

shards = Zoo()
GROUP = "tar shards"
MEMBERS = {"0.bmp": bitmap(0), "0.cls": b"0", "1.bmp": bitmap(1), "1.cls": b"1"}
READABLE = r"^2 images, 0 unreadable, labels \[0, 1\]$"


def labelled(root: Path, *labels: bytes, kind: str = "cls") -> str:
    members = {}
    for number, label in enumerate(labels):
        members |= {f"{number}.bmp": bitmap(number), f"{number}.{kind}": label}
    pack(root / "a.tar", members)
    return f"webdataset:{root}"


def edited(root: Path, edit: Callable[[bytearray], None], members: dict[str, bytes] = MEMBERS) -> str:
    """A shard whose bytes were changed, and the sums of its headers made right again."""
    content = bytearray(pack(root / "a.tar", members, tarfile.USTAR_FORMAT).read_bytes())
    headers = headers_of(content)
    edit(content)
    mend(content, headers)
    (root / "a.tar").write_bytes(content)
    return f"webdataset:{root}"


def headers_of(content: bytes | bytearray) -> list[int]:
    return [at for at in range(0, len(content), 512) if content[at + 257 : at + 262] == b"ustar"]


def mend(content: bytearray, headers: Sequence[int]) -> None:
    for at in headers:
        content[at + 148 : at + 156] = b" " * 8
        content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])


def with_info(root: Path, **fields: object) -> str:
    """The two images, and between them a third whose header has these fields."""
    with tarfile.open(root / "a.tar", "w") as archive:
        for number, name in enumerate(("0.bmp", "odd.bmp", "1.bmp")):
            member = tarfile.TarInfo(name)
            member.size = len(bitmap())
            for field, value in fields.items() if name == "odd.bmp" else ():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(bitmap(number)) if member.isreg() else None)
    return f"webdataset:{root}"


@shards("^refused: .*the label 2000000000 .*a.tar/1.bmp.* is not a class number")
def a_label_of_two_billion(root: Path) -> str:
    return labelled(root, b"0", b"2000000000")


@shards("^refused: .*the label 9223372036854775808 .* is not a class number")
def a_label_of_more_than_63_bits(root: Path) -> str:
    return labelled(root, b"0", b"9223372036854775808")


@shards("^refused: .*the label 10+ .* is not a class number")
def a_label_of_four_thousand_digits(root: Path) -> str:
    return labelled(root, b"0", b"1" + b"0" * 4000)


@shards("^2 images, 0 unreadable, no labels$")
def a_label_of_minus_one(root: Path) -> str:
    return labelled(root, b"0", b"-1")


@shards("^2 images, 0 unreadable, no labels$")
def a_label_of_minus_two_to_the_seventy(root: Path) -> str:
    return labelled(root, b"0", b"-%d" % 2**70)


@shards("^7 images, 0 unreadable, no labels$")
def labels_that_are_not_numbers(root: Path) -> str:
    return labelled(root, b'"3"', b"1.0", b"true", b"NaN", b"", b"cat", b"\xff\xfe\0", kind="cls")


@shards("^4 images, 0 unreadable, no labels$")
def descriptions_without_a_number(root: Path) -> str:
    return labelled(root, b'{"label": "3"}', b"[1]", b'{"label": {"label": 1}}', b'{"label": 1e400}', kind="json")


@shards("^2 images, 0 unreadable, no labels$")
def a_description_of_lists_in_lists(root: Path) -> str:
    return labelled(root, b"0", b'{"label": ' + b"[" * 500_000, kind="json")


@shards("^refused: .*a header or label of 2000000 bytes")
def a_description_of_megabytes(root: Path) -> str:
    return labelled(root, b"0", b" " * 2_000_000, kind="json")


@shards("^3 images, 1 unreadable")
def a_hard_link(root: Path) -> str:
    return with_info(root, type=tarfile.LNKTYPE, linkname="0.bmp")


@shards("^3 images, 1 unreadable")
def a_symbolic_link_to_itself(root: Path) -> str:
    return with_info(root, type=tarfile.SYMTYPE, linkname="odd.bmp")


@shards("^3 images, 1 unreadable")
def a_pipe_in_the_tar(root: Path) -> str:
    return with_info(root, type=tarfile.FIFOTYPE)


@shards("^2 images, 0 unreadable")
def a_folder_called_like_an_image(root: Path) -> str:
    return with_info(root, type=tarfile.DIRTYPE)


@shards("^3 images, 0 unreadable")
def a_name_that_leads_out(root: Path) -> str:
    return with_info(root, name="../../../etc/odd.bmp")


@shards("^3 images, 0 unreadable")
def an_absolute_name_that_is_not_utf_8(root: Path) -> str:
    return with_info(root, name="/etc/\udcff\n.bmp")


@shards("^refused: .*0.bmp and 0.bmp are images of one sample")
def two_members_of_one_name(root: Path) -> str:
    return with_info(root, name="0.bmp")


@shards("^3 images, 1 unreadable")
def a_member_with_holes_as_gnu_tar_writes_it(root: Path) -> str:
    def sparse(content: bytearray) -> None:
        at = headers_of(content)[1]
        content[at + 156] = ord("S")
        content[at + 386 : at + 410] = b"%011o\0%011o\0" % (0, len(bitmap()))
        content[at + 482] = 0
        content[at + 483 : at + 495] = b"%011o\0" % 8**10

    return edited(root, sparse, {"0.bmp": bitmap(), "odd.bmp": bitmap(), "1.bmp": bitmap()})


@shards("^3 images, 1 unreadable")
def a_member_with_holes_as_pax_has_it(root: Path) -> str:
    return with_info(root, pax_headers={"GNU.sparse.size": "9999999", "GNU.sparse.map": "0,1"})


@shards("^refused: .*is not a complete, uncompressed tar file")
def a_map_of_holes_that_is_not_numbers(root: Path) -> str:
    return with_info(root, pax_headers={"GNU.sparse.map": "x,y"})


@shards("^refused: .*is not a complete, uncompressed tar file")
def a_size_below_nothing(root: Path) -> str:
    def negative(content: bytearray) -> None:
        at = headers_of(content)[2]
        content[at + 124 : at + 136] = b"\xff" * 10 + b"\xf8\0"

    return edited(root, negative)


@shards("^refused: .*is not a complete, uncompressed tar file")
def a_size_beyond_the_file(root: Path) -> str:
    def huge(content: bytearray) -> None:
        at = headers_of(content)[2]
        content[at + 124 : at + 136] = b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7

    return edited(root, huge)


@shards("^refused: .*is not a complete, uncompressed tar file .*a header or label of")
def a_header_of_gigabytes(root: Path) -> str:
    def pax(content: bytearray) -> None:
        at = headers_of(content)[2]
        content[at + 156] = ord("x")
        content[at + 124 : at + 136] = b"%011o\0" % (8**11 - 1)

    return edited(root, pax)


@shards("^refused: .*is not a complete, uncompressed tar file")
def headers_of_headers(root: Path) -> str:
    member = tarfile.TarInfo("x")
    member.type = tarfile.XHDTYPE
    content = pack(root / "a.tar", MEMBERS, tarfile.USTAR_FORMAT).read_bytes()
    (root / "a.tar").write_bytes(member.tobuf(tarfile.USTAR_FORMAT) * 5000 + content)
    return f"webdataset:{root}"


@shards(r"^refused: .*damaged or truncated at byte 1,024\)$")
def a_header_in_the_middle_is_damaged(root: Path) -> str:
    spec = edited(root, lambda content: None)
    content = bytearray((root / "a.tar").read_bytes())
    content[headers_of(content)[1] + 148] ^= 1
    (root / "a.tar").write_bytes(content)
    return spec


@shards("^refused: .*is not a complete, uncompressed tar file")
def cut_in_the_middle_of_an_image(root: Path) -> str:
    spec = labelled(root, b"0", b"1")
    content = (root / "a.tar").read_bytes()
    (root / "a.tar").write_bytes(content[: headers_of(content)[2] + 520])
    return spec


@shards(READABLE)
def without_the_two_blocks_at_the_end(root: Path) -> str:
    spec = labelled(root, b"0", b"1")
    content = (root / "a.tar").read_bytes()
    (root / "a.tar").write_bytes(content[: headers_of(content)[-1] + 1024])
    return spec


@shards("^refused: .*is not a complete, uncompressed tar file")
def compressed(root: Path) -> str:
    with tarfile.open(root / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return f"webdataset:{root}"


@shards("^refused: .*is not a complete, uncompressed tar file .empty file")
def of_no_bytes(root: Path) -> str:
    (root / "a.tar").touch()
    return f"webdataset:{root}"


@shards("^refused: .*no images in")
def of_no_members(root: Path) -> str:
    pack(root / "a.tar", {})
    return f"webdataset:{root}/a.tar"


@shards("^refused: .*a.tar is not a file")
def a_folder_called_like_a_shard(root: Path) -> str:
    (root / "a.tar").mkdir()
    return f"webdataset:{root}"


@shards("^refused: .*a.tar is not a file")
def a_pipe_called_like_a_shard(root: Path) -> str:
    os.mkfifo(root / "a.tar")
    return f"webdataset:{root}/a.tar"


@shards("^refused: .*not a file")
def a_device_without_end(root: Path) -> str:
    return "webdataset:/dev/zero"


@shards("^refused: .*the pattern expands to 1,000,000,000 shards; at most 100,000 are read")
def a_range_of_a_billion(root: Path) -> str:
    return f"webdataset:{root}/a-{{0..999999999}}.tar"


@shards("^refused: .*the pattern expands to 10,000,000,000 shards")
def ranges_of_ranges(root: Path) -> str:
    return f"webdataset:{root}/{'{0..9}' * 10}.tar"


@shards("^refused: .*no such shards")
def a_range_of_many_digits_and_one_backwards(root: Path) -> str:
    return f"webdataset:{root}/{{0..{'9' * 40}}}{{9..1}}[.tar"


@pytest.mark.parametrize(("make", "said"), shards.cases)
def test_shards(tmp_path: Path, tally: Tally, make: Callable[[Path], str], said: str) -> None:
    assert re.search(said, outcome(make(tmp_path), GROUP, tally))


def indexed(spec: str) -> str:
    """As `look`, but nothing is decoded."""
    try:
        source = open_source(spec)
    except UserError as error:
        return f"refused: {error}"
    for index in range(len(source)):
        try:
            source.encoded(index)
        except DecodeError:
            continue
    return f"{len(source)} images"


def spoilt(content: bytes, generator: Random, others: Sequence[bytes]) -> bytes:
    """Damaged anywhere, or in headers whose sums were made right again."""
    if generator.random() < 0.3:
        return damaged(content, generator, others)
    data, headers = bytearray(content), headers_of(content)
    for _ in range(generator.choice((1, 1, 2, 3))):
        at = generator.choice(headers)
        kind = generator.choice(("size", "type", "pax", "holes", "any"))
        if kind == "size":
            sizes = (b"%011o\0" % generator.randrange(8**9), b"\x80" + generator.randbytes(11), b"\xff" * 11 + b"\0")
            data[at + 124 : at + 136] = generator.choice(sizes)
        elif kind == "type":
            data[at + 156] = generator.choice(b"012345679xgXLKSVMDAN\0")
        elif kind == "pax":
            text = generator.choice(
                (b"16 size=-100000\n", b"22 GNU.sparse.map=1,2,3\n", b"9" * 30 + b" a=b\n", b"0 a=b\n")
            )
            data[at + 156] = generator.choice(b"xg")
            data[at + 512 : at + 512 + len(text)] = text
        elif kind == "holes":
            data[at + 156] = ord("S")
            data[at + 386 : at + 482] = b"%011o\0" % generator.randrange(8**8) * 8
            data[at + 482] = generator.randrange(2)
        else:
            data[at + generator.randrange(512)] = generator.randrange(256)
    mend(data, headers)
    return bytes(data)


@pytest.mark.parametrize("count", [20, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_shards(tmp_path: Path, tally: Tally, count: int) -> None:
    generator, path = Random(count), tmp_path / "a.tar"
    long = {f"{'x' * 120}/{name}": content for name, content in MEMBERS.items()}
    layouts = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
    whole = [pack(path, MEMBERS | long, layout).read_bytes() for layout in layouts]
    for _ in range(count):
        path.write_bytes(spoilt(generator.choice(whole), generator, whole))
        outcome(f"webdataset:{path}", "damaged tar shards", tally, indexed)


def test_the_command_line_says_it_in_a_line(tmp_path: Path, tally: Tally) -> None:
    pack(tmp_path / "train-0.tar", MEMBERS | {"1.cls": b"2000000000"})
    pack(tmp_path / "test-0.tar", MEMBERS)
    ended = hexa("evaluate", "knn", "pixels:8", "--data", f"webdataset:{tmp_path}")
    tally.input(GROUP, ended.complaint is None)
    assert ended.complaint is None
    assert "the label 2000000000 (train-0.tar/1.bmp) is not a class number" in ended.err
