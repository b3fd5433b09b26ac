"""Decoding: every kind of file against what was written into it."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from hexa.data.sources import decode as decoding
from hexa.data.sources.decode import DecodeError, decode, quiet
from hexa.data.sources.pil import jpeg_size
from tests.data.image_files import (
    PNG_KINDS,
    chunk,
    every_format,
    exif,
    palette,
    photograph,
    png,
    png_values,
    saved,
)


def decode_with_pil(data: bytes) -> Tensor:
    """The image where torchvision has no decoder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "decode_image", None)
        return decode(data)


def _gradient(height: int = 40, width: int = 56) -> Image.Image:
    """Smooth colours, so that JPEG hardly changes them; different in every corner."""
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * y / (height - 1)
    green = 255 * x / (width - 1)
    blue = 255 - (red + green) / 2
    pixels = np.stack((red, green, blue), 2)
    return Image.fromarray(pixels.astype(np.uint8))


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _assert_near(made: Tensor, expected: Tensor, levels: float) -> None:
    assert made.dtype == torch.uint8
    torch.testing.assert_close(made.float(), expected.float(), atol=levels, rtol=0)


@pytest.mark.parametrize(
    ("kind", "mode", "levels", "options"),
    [
        *((kind, "RGB", 0, {}) for kind in ("PNG", "BMP", "PPM", "TIFF")),
        ("GIF", "P", 0, {}),
        ("WEBP", "RGB", 0, {"lossless": True}),
        ("JPEG", "RGB", 6, {"quality": 98, "subsampling": 0}),
        ("JPEG", "L", 2, {"quality": 100}),
        ("JPEG", "CMYK", 8, {"quality": 100}),
    ],
)
def test_format_colours(kind: str, mode: str, levels: int, options: dict[str, Any]) -> None:
    """Files of every kind keep their colours."""
    source = _gradient().quantize(256) if mode == "P" else _gradient().convert(mode)
    expected = _gradient() if mode == "CMYK" else source.convert("RGB")
    data = saved(source, kind, **options)
    _assert_near(decode(data), _tensor(expected), levels)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(kind: str, orientation: int) -> None:
    options: dict[str, Any] = {"quality": 98, "subsampling": 0} if kind == "JPEG" else {}
    data = saved(_gradient(), kind, exif=exif(orientation), **options)
    stored = Image.open(io.BytesIO(data))
    upright = ImageOps.exif_transpose(stored).convert("RGB")
    expected = (56, 40) if orientation < 5 else (40, 56)
    assert upright.size == expected
    _assert_near(decode(data), _tensor(upright), 0)
    assert torch.equal(decode_with_pil(data), _tensor(upright))
    if kind == "JPEG":
        assert jpeg_size(data) == (upright.height, upright.width)


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_jpeg_shrunken_decoding(shrink: int) -> None:
    """A shrunken JPEG is the image at that share of its size."""
    picture = _gradient(401, 563)
    data = saved(picture, "JPEG", quality=95)
    made = decode(data, shrink=shrink)
    height = math.ceil(401 / shrink)
    width = math.ceil(563 / shrink)
    assert made.shape[1:] == (height, width)
    smaller = picture.resize((width, height), Image.Resampling.BOX)
    _assert_near(made, _tensor(smaller), 8)


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "interlaced"])
@pytest.mark.parametrize(("colour", "depth"), PNG_KINDS)
def test_png_kinds(colour: int, depth: int, interlaced: bool) -> None:
    """Every kind of PNG keeps its pixels."""
    values = png_values(colour, depth)
    colours = palette(depth)
    before = chunk(b"PLTE", colours.tobytes()) if colour == 3 else b""
    made = decode(
        png(
            values,
            colour,
            depth,
            interlaced=interlaced,
            before=before,
        )
    )
    if colour == 3:
        expected = colours[values[..., 0]]
    elif colour == 0:
        levels = np.round(values / (2**depth - 1) * 255)
        expected = levels.astype(np.uint8).repeat(3, 2)
    else:
        eight_bits = values >> max(0, depth - 8)
        picture = Image.fromarray(eight_bits.astype(np.uint8)).convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        composite = Image.alpha_composite(white, picture)
        expected = np.array(composite.convert("RGB"))
    assert torch.equal(made, torch.from_numpy(expected).permute(2, 0, 1))


@pytest.mark.parametrize("name", every_format())
def test_pixel_limit(name: str) -> None:
    data = every_format()[name]
    _, height, width = decode(data).shape
    assert decode(data, height * width).shape == (3, height, width)
    with pytest.raises(
        DecodeError, match=rf"\d+ × \d+ pixels, more than the limit of {height * width - 1:,} "
    ):
        decode(data, height * width - 1)
    if name.startswith("JPEG"):
        with pytest.raises(DecodeError, match="more than the limit"):
            decode(data, height * width - 1, shrink=2)


@pytest.mark.parametrize(
    "exif_bytes",
    [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_garbage_exif(kind: str, exif_bytes: bytes) -> None:
    """Garbage in place of EXIF does no harm."""
    data = saved(photograph(), kind, exif=exif_bytes)
    plain = saved(photograph(), kind)
    with quiet():
        assert torch.equal(decode(data), decode(plain))
        assert torch.equal(decode_with_pil(data), decode_with_pil(plain))


def test_unknown_formats() -> None:
    """Unknown formats are refused; Ghostscript would run EPS."""
    for kind in ("EPS", "TGA", "ICO"):
        with pytest.raises(DecodeError, match="not an image in a known format"):
            decode(saved(photograph(32, 32), kind))
