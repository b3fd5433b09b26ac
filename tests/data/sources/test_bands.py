"""Bands: arrays and TIFF as they were stored, of every type, and what is refused in one line."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.data import open_source
from hexa.data.sources import bands
from hexa.data.sources.decode import DecodeError, decode, unit
from tests.data.image_files import png, png_values, saved
from tests.pickles import Calls
from tests.refusals import one_line


def _npy(values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


def _values(shape: tuple[int, ...], dtype: str) -> Any:
    generator = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return generator.random(shape).astype(dtype)
    return generator.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("dtype", "kind", "white"),
    [
        ("uint8", torch.uint8, 255),
        ("<u2", torch.uint16, 65535),
        (">u2", torch.uint16, 65535),
        ("<f2", torch.float32, 1),
        ("<f4", torch.float32, 1),
        (">f8", torch.float32, 1),
    ],
)
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 4)])
def test_array_values(
    shape: tuple[int, ...], dtype: str, kind: torch.dtype, white: int, order: str
) -> None:
    """Arrays are read exactly."""
    values = np.asarray(_values(shape, dtype), order=order)
    expected = values.reshape(5, 7, -1).transpose(2, 0, 1).astype(np.float64)
    made = decode(_npy(values), channels=len(expected))
    assert made.is_contiguous()
    assert made.dtype == kind
    np.testing.assert_array_equal(made.double(), expected.astype(made.numpy().dtype))
    np.testing.assert_allclose(unit(made), expected / white, atol=6e-8)


def test_grey_array_as_rgb() -> None:
    """Grey is repeated if RGB is wanted."""
    values = _values((5, 7), "uint16")
    made = decode(_npy(values))
    assert made.shape == (3, 5, 7)
    np.testing.assert_array_equal(made[1].numpy(), values)


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_single_channel_grey(kind: str) -> None:
    """One channel is grey with all its bits."""
    wide = _values((9, 8), "uint16")
    data = saved(Image.fromarray(wide), kind)
    np.testing.assert_array_equal(decode(data, channels=1)[0], wide)
    colour = Image.fromarray(_values((9, 8, 3), "uint8"))
    data = saved(colour, kind)
    np.testing.assert_array_equal(decode(data, channels=1)[0], np.asarray(colour.convert("L")))


def test_four_channels() -> None:
    """Transparency is the fourth channel."""
    rgba = _values((9, 8, 4), "uint8")
    data = saved(Image.fromarray(rgba), "png")
    np.testing.assert_array_equal(decode(data, channels=4).permute(1, 2, 0), rgba)


def _header(
    shape: str,
    descr: str = "'|u1'",
    more: bytes = b"",
) -> bytes:
    text = (
        f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117)
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + more


TRAP = np.array([[Calls(pytest.fail, "an array was unpickled")]], object)
REFUSED = {
    "not a number": (_npy(np.array([[0.5, np.nan]])), "from nan to nan"),
    "above one": (_npy(np.array([[0.5, 7.0]])), "from 0.5 to 7"),
    "signed": (_npy(np.zeros((3, 3), np.int16)), "int16"),
    "objects": (_npy(TRAP, allow_pickle=True), "objects"),
    "pickled": (
        b"\x93NUMPY\x01\x00" + pickle.dumps({"x": 1}),
        "header",
    ),
    "four axes": (_npy(np.zeros((2, 2, 2, 2), np.uint8)), "shape"),
    "huge": (_header("(100000, 100000)"), "100000 × 100000"),
    "cut": (_npy(np.zeros((30, 30), np.uint8))[:-1], "truncated"),
    "code": (_header("__import__('os').getpid()"), "header"),
    "bands first": (
        _npy(np.zeros((4, 9, 9), np.uint8)),
        r"9 bands where 4 are expected .*come last, \[H, W, C\]",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_invalid_array_refusal(name: str) -> None:
    """An array that is not an image is refused in one line."""
    data, reason = REFUSED[name]
    with one_line(reason, DecodeError):
        decode(data, channels=4 if name == "bands first" else 1)


# -- TIFF -------------------------------------------------------------------------------------------------------------


def _tiff(values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    pytest.importorskip("tifffile").imwrite(file, values, **options)
    return file.getvalue()


LAYOUTS: dict[str, dict[str, Any]] = {
    "contig": {},
    "separate": {"planarconfig": "separate"},
    "pages": {"planarconfig": None},
    "tiles": {"tile": (16, 16)},
    "big": {"bigtiff": True},
    "other-endian": {"byteorder": ">"},
}


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiff_bands(
    layout: str,
    dtype: str,
    compression: str | None,
) -> None:
    """Bands of a TIFF are read exactly."""
    values = _values((40, 33, 5), dtype)
    planes = values.transpose(2, 0, 1)
    options = {
        "planarconfig": "contig",
        "compression": compression,
        "photometric": "minisblack",
    } | LAYOUTS[layout]
    data = _tiff(planes if layout in ("separate", "pages") else values, **options)
    np.testing.assert_array_equal(decode(data, channels=5).numpy(), planes)


@pytest.mark.parametrize("channels", [1, 3])
def test_tiff_white_is_zero(channels: int) -> None:
    """A negative of 16 bits is not taken for a positive."""
    data = _tiff(_values((8, 8), "uint16"), photometric="miniswhite")
    with pytest.raises(DecodeError, match="white is 0"):
        decode(data, channels=channels)


def test_tiff_strip_bomb() -> None:
    """A strip that unfolds to far more bytes is refused."""
    packed = _tiff(
        np.zeros((64, 64, 4), np.uint8),
        photometric="minisblack",
        planarconfig="contig",
        compression="zlib",
    )
    bomb = zlib.compress(bytes(1 << 26), 1)
    with pytest.importorskip("tifffile").TiffFile(io.BytesIO(packed)) as file:
        offsets = file.pages[0].tags["StripOffsets"]
        counts = file.pages[0].tags["StripByteCounts"]
    changed = bytearray(packed + bomb)
    for tag, value in ((offsets, len(packed)), (counts, len(bomb))):
        kind, most = ("<H", 65535) if tag.dtype == 3 else ("<I", len(changed))
        struct.pack_into(kind, changed, tag.valueoffset, min(value, most))
    with pytest.raises(DecodeError):
        decode(bytes(changed), channels=4)


def _grey(values: Any, dtype: str) -> bytes:
    return saved(Image.fromarray(values.astype(dtype)), "tiff")


@pytest.mark.parametrize("channels", [1, 3])
def test_float_and_int32_scale(channels: int) -> None:
    """255 · x and x / 65535 · 255, whether an image is dark or bright."""
    for brightest in (0.01, 0.5, 1.0):
        floats = np.linspace(0, brightest, 42, dtype=np.float32).reshape(6, 7)
        for dtype, values, scale in (
            ("float32", floats, 1),
            ("int32", np.round(floats * 65535), 65535),
        ):
            pixels = unit(decode(_grey(values, dtype), channels=channels))
            expected = torch.from_numpy(values.astype(np.float64) / scale).expand(channels, -1, -1)
            # three channels have 8 bits
            torch.testing.assert_close(
                pixels.double(), expected, atol=(channels == 3) / 510 + 1e-6, rtol=0
            )


@pytest.mark.parametrize("layout", ["strips", "tiles", "planes", "planes of tiles"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_tiff_missing_strips(layout: str, channels: int) -> None:
    """A TIFF without some of its strips is refused as truncated."""
    values = _values((40, 33, channels), "uint8")
    by_plane = "planes" in layout and channels > 1
    options: dict[str, Any] = {"tile": (16, 16)} if "tiles" in layout else {"rowsperstrip": 4}
    options["photometric"] = "rgb" if channels == 3 else "minisblack"
    if channels > 1:
        options["planarconfig"] = "separate" if by_plane else "contig"
    stored = values.transpose(2, 0, 1) if by_plane else values
    data = bytearray(_tiff(stored.squeeze(), **options))
    found = decode(bytes(data), channels=channels).permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(found, values)
    (at,) = struct.unpack_from(
        "<I", data, 4
    )  # the directory: each entry is tag, type, count, value
    (entries,) = struct.unpack_from("<H", data, at)
    for entry in range(at + 2, at + 2 + 12 * entries, 12):
        tag, _, count = struct.unpack_from("<HHI", data, entry)
        if tag in (273, 279, 324, 325):  # offsets and lengths of strips and tiles
            struct.pack_into("<I", data, entry + 4, count - 1)
    with pytest.raises(DecodeError, match="the TIFF is truncated: strips or tiles are missing"):
        decode(bytes(data), channels=channels)


def _as_tiff(values: Any) -> bytes:
    return _tiff(values, photometric="rgb" if values.ndim == 3 else "minisblack")


def _as_png(values: Any) -> bytes:
    return png(values.reshape(*values.shape[:2], -1), {1: 0, 3: 2}[values.size // 80], 16)


@pytest.mark.parametrize("write", [_as_tiff, _as_png], ids=["TIFF", "PNG"])
@pytest.mark.parametrize("shape", [(10, 8), (10, 8, 3)])
def test_twelve_bit_scaling(
    tmp_path: Path, shape: tuple[int, ...], write: Callable[[Any], bytes]
) -> None:
    """Twelve bits that are stored in sixteen are scaled by max_value."""
    values = _values(shape, "uint16") >> 4
    values[0, 0] = 4095  # the highest
    for number in range(2):
        (tmp_path / f"{number}.scan").write_bytes(write(values))
    dark = open_source(f"folder:{tmp_path}")
    assert dark.decode(0).max() <= 16
    (note,) = dark.notes()
    assert "the largest value of these 16-bit images is 4,095 of 65,535" in note
    remedy = note.rpartition("give ")[2]
    assert remedy == f"folder:{tmp_path},max_value=4095"
    bright = open_source(remedy)
    assert bright.notes() == []
    expected = np.round(values.reshape(10, 8, -1) / 4095 * 255).astype(np.uint8)
    assert np.array_equal(bright.decode(0).permute(1, 2, 0), np.broadcast_to(expected, (10, 8, 3)))
    if len(shape) == 2:
        grey = open_source(f"{remedy}#train", channels=1).decode(1)
        assert grey.dtype == torch.uint16
        np.testing.assert_allclose(unit(grey)[0], values / 4095, atol=1e-5)


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "interlaced"])
@pytest.mark.parametrize("colour", [2, 4, 6])
@pytest.mark.parametrize(
    "size",
    [
        (1, 1),
        (1, 7),
        (23, 31),
    ],
)
def test_png_sixteen_bit_values(
    size: tuple[int, int],
    colour: int,
    interlaced: bool,
) -> None:
    """Colours of 16 bits keep all their bits, with and without transparency."""
    values = png_values(colour, 16, *size)
    found = bands.deep(png(values, colour, 16, interlaced=interlaced), 1000)
    np.testing.assert_array_equal(found, values)
    assert found.dtype == np.uint16
    assert bands.deep(png(png_values(colour, 8), colour, 8), 1000) is None
