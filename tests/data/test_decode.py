"""Decoding: every kind of file against what was written into it."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from hexa.data.decode import DecodeError, decode, decode_with_pil, jpeg_size


def _gradient(height: int = 40, width: int = 56) -> Image.Image:
    """Smooth colours, so that JPEG hardly changes them; different in every corner."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * y / (height - 1), 255 * x / (width - 1)
    return Image.fromarray(np.stack((red, green, 255 - (red + green) / 2), 2).astype(np.uint8))


def _file(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _assert_near(made: Tensor, expected: Tensor, levels: float) -> None:
    assert made.dtype == torch.uint8
    torch.testing.assert_close(made.float(), expected.float(), atol=levels, rtol=0)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "GIF", "WEBP", "JPEG"])
def test_colour_files(kind: str) -> None:
    options: dict[str, Any] = {"quality": 98, "subsampling": 0} if kind == "JPEG" else {}
    options = {"lossless": True} if kind == "WEBP" else options
    source = _gradient().quantize(256).convert("RGB") if kind == "GIF" else _gradient()
    _assert_near(decode(_file(source, kind, **options)), _tensor(source), 6 if kind == "JPEG" else 2 * (kind == "GIF"))


@pytest.mark.parametrize("options", [{"quality": 95, "subsampling": 0}, {"quality": 70}, {"progressive": True}])
def test_the_fast_path_gives_pils_pixels(options: dict[str, Any]) -> None:
    data = _file(_gradient(), "JPEG", **options)
    assert torch.equal(decode(data), decode_with_pil(data))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey(kind: str) -> None:
    grey = _gradient().convert("L")
    made = decode(_file(grey, kind, **({"quality": 100} if kind == "JPEG" else {})))
    _assert_near(made, _tensor(grey.convert("RGB")), 2 if kind == "JPEG" else 0)


def test_one_bit() -> None:
    picture = _gradient().convert("1")
    assert torch.equal(decode(_file(picture, "PNG")), _tensor(picture.convert("RGB")))


def test_palette() -> None:
    palette = _gradient().quantize(16)
    assert torch.equal(decode(_file(palette, "PNG")), _tensor(palette.convert("RGB")))


def test_cmyk() -> None:
    picture = _gradient()
    _assert_near(decode(_file(picture.convert("CMYK"), "JPEG", quality=100)), _tensor(picture), 8)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_cut_off(kind: str) -> None:
    values = np.linspace(0, 65535, 30 * 20).astype(np.uint16).reshape(30, 20)
    made = decode(_file(Image.fromarray(values), kind))
    expected = torch.from_numpy((values / 257).round()).expand(3, -1, -1)
    _assert_near(made, expected, 1)
    assert made.max() == 255


def test_dark_sixteen_bits_stay_dark() -> None:
    values = np.full((8, 8), 1000, dtype=np.uint16)
    assert decode(_file(Image.fromarray(values), "PNG")).float().mean() == pytest.approx(1000 / 257, abs=0.6)


def test_transparent_pixels_are_white_and_half_transparent_ones_half() -> None:
    layer = np.zeros((4, 4, 4), dtype=np.uint8)
    layer[0, :, 3] = 255
    layer[1, :, 3] = 128
    made = decode(_file(Image.fromarray(layer, "RGBA"), "PNG"))
    assert made[:, 0].eq(0).all()
    assert abs(made[:, 1].float().mean() - 127) <= 1
    assert made[:, 2:].eq(255).all()


def test_a_transparent_palette_entry_is_white() -> None:
    palette = Image.new("P", (3, 3), 0)
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 1), 1)
    made = decode(_file(palette, "PNG", transparency=0))
    assert made[:, 0, 0].tolist() == [255, 255, 255]
    assert made[:, 1, 1].tolist() == [200, 100, 50]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"quality": 98, "subsampling": 0} if kind == "JPEG" else {}
    data = _file(_gradient(), kind, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert upright.size == ((56, 40) if orientation < 5 else (40, 56))
    _assert_near(decode(data), _tensor(upright), 0)
    assert torch.equal(decode_with_pil(data), _tensor(upright))
    if kind == "JPEG":
        assert jpeg_size(data) == (upright.height, upright.width)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_single_pixel(kind: str) -> None:
    assert decode(_file(Image.new("RGB", (1, 1), (9, 9, 9)), kind)).shape == (3, 1, 1)


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_a_shrunken_jpeg_is_the_image_at_that_share_of_its_size(shrink: int) -> None:
    picture = _gradient(401, 563)
    made = decode_with_pil(_file(picture, "JPEG", quality=95), shrink)
    assert made.shape[1:] == (-(-401 // shrink), -(-563 // shrink))
    expected = _tensor(picture.resize((made.shape[2], made.shape[1]), Image.Resampling.BOX))
    _assert_near(made, expected, 8)


def _broken_jpeg() -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = _file(Image.fromarray(noise), "JPEG")
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image at all",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
        _file(_gradient(), "PNG")[:200],
        _broken_jpeg(),
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + b"\0" * 8 + b"\x08\x02\0\0\0",
    ],
    ids=["empty", "text", "jpeg start", "png zeros", "png half", "jpeg half", "png without size"],
)
def test_broken_files_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert "0x" not in str(caught.value)
