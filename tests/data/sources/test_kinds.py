"""Detection of image files in a folder or shard, and notes about other files."""

from __future__ import annotations

import io
import os
import socket
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.data import open_source
from hexa.data.sources import decode as decoding, jpeg_xl, pil
from hexa.data.sources.decode import DecodeError, decode
from hexa.data.sources.groups import groups_of
from tests.data.image_files import every_format, exif, photograph, saved
from tests.data.sources.looks import labels_of
from tests.data.sources.test_opening import write_image
from tests.data.sources.test_webdataset import pack

#: What `every_format` calls a format, if not as `kind_of` does.
_CALLED = {"WEBP": "WebP", "JP2": "JPEG 2000"}
_TEXTS = [b"", b"P1 is", b"BM I wrote", b"II. Act", b"MMXX", b"RIFF1234WAVE", b"%PDF-1.7", b"P5\n#"]
_VIDEO = b"\0\0\0\x18ftypisom\0\0\0\0isommp42"


def plugin(kind: str) -> ModuleType:
    """The module that reads and writes a kind of image."""
    return pytest.importorskip(decoding.EXTRAS[kind][1], reason="an extra that is not installed")


def of_plugin(kind: str, picture: Image.Image, **options: Any) -> bytes:
    """A picture as HEIC, JPEG XL or AVIF, without loss unless options say otherwise."""
    if kind == "AVIF":
        return saved(picture, "AVIF", quality=100, subsampling="4:4:4")
    module: Any = plugin(kind)
    out = io.BytesIO()
    if kind == "HEIC":
        module.from_pillow(picture).save(out, quality=-1, chroma=444, **options)
    else:
        picture.save(out, "JXL", lossless=True, **options)
    return out.getvalue()


def test_format_signatures() -> None:
    """Every kind is known by its first bytes."""
    for name, data in every_format().items():
        word = name.split()[0]
        assert decoding.kind_of(data[: decoding.HEAD]) == _CALLED.get(word, word), name
    for text in (*_TEXTS, _VIDEO):
        assert decoding.kind_of(text) is None
    generic = b"\0\0\0\x18ftypmif1\0\0\0\0mif1"
    assert decoding.kind_of(generic + b"heic") == decoding.kind_of(generic + b"miaf") == "HEIC"
    assert decoding.kind_of(generic + b"avif") == "AVIF"


@pytest.mark.parametrize(("kind", "levels"), [("HEIC", 4), ("AVIF", 4), ("JPEG XL", 0)])
def test_later_formats(kind: str, levels: int) -> None:
    """Their pixels, up to rounding in YCbCr, and what is refused."""
    picture = photograph(30, 44)
    data = of_plugin(kind, picture)
    assert decoding.kind_of(data) == kind
    made = decode(data).permute(1, 2, 0).numpy()
    np.testing.assert_allclose(made.astype(int), np.array(picture), atol=levels, rtol=0)
    with pytest.raises(DecodeError, match="44 × 30 pixels, more than the limit of 1,000 "):
        decode(data, 1000)
    for length in (20, len(data) // 2):
        with pytest.raises(DecodeError, match=f"cannot be read as {kind}|Unexpected end of file"):
            decode(data[:length])


@pytest.mark.parametrize("orientation", [1, 6])
def test_jpeg_in_jpeg_xl_orientation(tmp_path: Path, orientation: int) -> None:
    """A JPEG that is packed into JPEG XL is turned once."""
    plugin("JPEG XL")
    path = tmp_path / "a.jpg"
    path.write_bytes(saved(photograph(16, 24), "JPEG", exif=exif(orientation), quality=95))
    out = io.BytesIO()
    with Image.open(path) as picture:
        picture.save(out, "JXL", lossless_jpeg=True)
    header = jpeg_xl.header_of(out.getvalue())
    assert header == (16, 24, orientation == 6)
    assert torch.equal(decode(out.getvalue()), decode(path.read_bytes()))


def test_jpeg_xl_pixel_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A header of eight bytes that claims 2 ** 30 rows."""
    claim = 0 | 3 << 1 | (2**30 - 1) << 3 | 1 << 33
    monkeypatch.setattr(pil, "_reader", lambda kind: lambda file: pytest.fail("decoded"))
    with pytest.raises(DecodeError, match="1073741824 × 1073741824 pixels"):
        decode(b"\xff\x0a" + claim.to_bytes(8, "little"))
    for broken in (
        b"\xff\x0a",
        b"\0\0\0\x0cJXL \r\n\x87\n",
        b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40),
    ):
        with pytest.raises(DecodeError, match="its header is broken"):
            decode(broken)


def _messy(root: Path) -> None:
    """Two classes of ten images each whose names say little, and many other files."""
    jpeg = saved(photograph(), "JPEG")
    contents: dict[str, bytes] = {
        "a.jfif": jpeg,
        "b.JPE": jpeg,
        "c.JPG_large": jpeg,
        "d": jpeg,
        "e.avif": saved(photograph(), "AVIF"),
        "f.dat": saved(photograph(), "WEBP"),
        "g.jpg": saved(photograph(), "PNG"),
        "h.ppm": saved(photograph(), "PPM"),
        "i.PNG": saved(photograph(), "PNG"),
        "j.TIFF": saved(photograph(), "TIFF"),
        "Thumbs.db": b"\xd0\xcf\x11\xe0",
        "notes.txt": b"P1 1",
        "box.xml": b"<a/>",
        "meta.json": b"{}",
        "scan.pdf": b"%PDF-1.7",
        "raw.NEF": saved(photograph(), "TIFF"),
        "clip.mp4": _VIDEO,
        "README": b"hello",
        ".DS_Store": b"x",
        "broken.jpg": b"no image",
    }
    for name in ("ant", "bee"):
        (root / name).mkdir(parents=True)
        for file, content in contents.items():
            (root / name / file).write_bytes(content)
        os.mkfifo(root / name / "pipe.jfif")
        os.symlink(root, root / name / "loop")
        os.symlink("nowhere", root / name / "gone.pdf")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(root / name / "s"))
    (root / "__MACOSX").mkdir()
    (root / "__MACOSX" / "._a.jpg").write_bytes(jpeg)
    (root / ".git").mkdir()
    write_image(root / ".git" / "x.png", 1)


_REST = (
    "4 special, 3 hidden, 2 .db, 2 .json, 2 .mp4, 2 .nef, 2 .pdf, 2 .txt, 2 .xml, 2 unreadable, "
    "2 without suffix, 1 __MACOSX"
)


def test_messy_folder_contents(tmp_path: Path) -> None:
    """The contents of files decide, not their names."""
    _messy(tmp_path / "in")
    source = open_source(f"folder:{tmp_path / 'in'}")
    assert labels_of(source) == [0] * 11 + [1] * 11
    names = [path.partition("/")[2] for path in source.paths[:11]]
    known = "a.jfif b.JPE broken.jpg c.JPG_large d e.avif f.dat g.jpg h.ppm i.PNG j.TIFF"
    assert " ".join(names) == known
    for place in range(11):
        if names[place] != "broken.jpg":
            assert source.decode(place).shape[0] == 3
    assert source.notes() == [f"folder:{tmp_path / 'in'}: 22 images; left out: {_REST}"]
    assert source.counted(2).endswith(f" 20 images; left out: 2 broken, {_REST}")


def test_webdataset_member_contents(tmp_path: Path) -> None:
    jpeg = saved(photograph(), "JPEG")
    members = {
        "1.jfif": jpeg,
        "2.JPEG": jpeg,
        "2.mask": saved(photograph(), "PNG"),
        "3.jpg": jpeg,
        "3.txt": b"a caption",
        "4.mp4": _VIDEO,
        "5.pdf": b"%PDF",
    }
    source = open_source(f"webdataset:{pack(tmp_path / 'a.tar', members)}")
    assert source.paths == ["a.tar/2.JPEG", "a.tar/3.jpg", "a.tar/1.jfif"]
    assert source.counted() == f"{source.name}: 3 images; left out: 1 .mp4, 1 .pdf"
    assert all(source.decode(place).shape[0] == 3 for place in range(3))


@pytest.mark.parametrize("name", ["set#1", "set#train", "#", "a#b#c", "a#b,max_value=3"])
def test_folder_number_sign_names(tmp_path: Path, name: str) -> None:
    for split in ("train", "test"):
        write_image(tmp_path / name / split / "cat" / "1.png", 1)
        write_image(tmp_path / name / split / "dog" / "2.png", 2)
    place = tmp_path / name
    for spec in (f"folder:{place}", str(place)):
        assert open_source(spec).split == "train"
        assert len(open_source(spec)) == 2
        assert open_source(spec).name == f"folder:{place}"
        assert open_source(f"{spec}#test").split == "test"
        assert open_source(open_source(spec).name, "test").split == "test"


def test_unicode_normal_forms(tmp_path: Path) -> None:
    """Folders, classes and rows of a file of groups, each composed in one place and decomposed in another."""
    nfc = unicodedata.normalize("NFC", "Köln")
    nfd = unicodedata.normalize("NFD", "Köln")
    assert nfc != nfd
    root = tmp_path / nfd / nfc
    for name, split in ((nfd, "train"), ("Bonn", "train"), (nfc, "test"), ("Bonn", "test")):
        write_image(root / split / name / f"{name}.png", 1)
    train, test = (open_source(f"folder:{tmp_path / nfc / nfd}", one) for one in ("train", "test"))
    assert train.class_names == test.class_names == ["Bonn", nfc]
    assert labels_of(train) == [0, 1]
    assert labels_of(test) == [0, 1]
    assert train.decode(1).shape[0] == 3
    table = tmp_path / "groups.csv"
    table.write_text(f"path,group\n{nfc}/{nfc}.png,p\nBonn/Bonn.png,p\n", encoding="utf-8")
    assert groups_of(str(table), train) == ["p", "p"]
