"""Reads images that PIL cannot read at full depth: .npy, TIFFs of several bands, 16-bit colours."""

from __future__ import annotations

import io
import logging
import math
import zlib
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hexa.data.sources import pil
from hexa.data.sources.decode import DecodeError, check_bytes, check_size, kind_of

Pixels = NDArray[Any]
#: Position of the bit depth in a PNG, and the depth of 16 bits.
_PNG_DEPTH = slice(24, 25)
_SIXTEEN = b"\x10"
#: How PIL names the pixels of a 16-bit PNG -> the name by which it reads their lower bytes, or all four bytes of a pixel
#: in grey and alpha.
_GREY_AND_ALPHA = "LA;16B"
_LOWER = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", _GREY_AND_ALPHA: "RGBA"}
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: TIFF tag.
_BITS_PER_SAMPLE = 258
#: Accepted TIFF compressions: none, LZW, PackBits, and the two codes for deflate.
_COMPRESSIONS = (1, 5, 32773, 8, 32946)
#: TIFF codes for deflate, which can unpack a few bytes to gigabytes.
_DEFLATE = (8, 32946)


def deep(data: bytes, max_pixels: int) -> Pixels | None:
    """Return the values [H, W] or [H, W, C] of an image of more than 8 bits, not turned upright; None for others."""
    kind = kind_of(data)
    if kind != "TIFF" and (kind != "PNG" or data[_PNG_DEPTH] != _SIXTEEN):
        return None
    image: Any = pil.opened(data, max_pixels)
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        return values.astype(np.uint16) if kind == "PNG" else values
    if kind == "PNG":
        return _png_colours(data, max_pixels)
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, ())
    if image.mode in ("RGB", "RGBA") and 16 in bits:
        return read_tiff(data, max_pixels, len(bits))
    return None


def _png_colours(data: bytes, max_pixels: int) -> Pixels | None:
    """Return the values [H, W, C] of a 16-bit PNG in colour or with transparency; None for others. Raises any error of PIL.

    PIL has no mode for 16-bit colours, but it reads their higher bytes and their lower bytes. torchvision has such a mode,
    but a damaged file ends the process.
    """
    image = pil.opened(data, max_pixels)
    layout = str(image.tile[0].args) if image.tile else ""
    if layout not in _LOWER:
        return None
    image.tile = [image.tile[0]._replace(args=_LOWER[layout])]
    lower = np.array(image)
    if layout == _GREY_AND_ALPHA:
        return lower.view(">u2").astype(np.uint16)
    values = np.array(pil.opened(data, max_pixels), dtype=np.uint16)
    values <<= 8
    values |= lower
    return values


def check(bands: int, channels: int, hint: str = "") -> None:
    """Raise DecodeError if an image does not have the expected number of bands."""
    if bands != channels:
        found = "1 band" if bands == 1 else f"{bands} bands"
        raise DecodeError(f"{found} where {channels} are expected (network.channels){hint}")


def read_npy(data: bytes, max_pixels: int) -> Pixels:
    """Return the array of a .npy file, [H, W] or [H, W, C]; files with pickled objects are refused."""
    file = io.BytesIO(data)
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(file)](file)
    except Exception:  # the message of numpy does not help a user
        raise DecodeError("the header of this .npy file cannot be read") from None
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        raise DecodeError("arrays of Python objects or records are not accepted")
    if len(shape) not in (2, 3) or not all(isinstance(side, int) and side >= 1 for side in shape):
        raise DecodeError(f"the array has shape {shape}; expected [H, W] or [H, W, C]")
    check_size(shape[0], shape[1], max_pixels)
    if dtype.itemsize * math.prod(shape) != len(data) - file.tell():
        raise DecodeError(
            f"an array of shape {shape} and type {dtype} that is truncated or has extra bytes at "
            "its end"
        )
    values = np.frombuffer(data, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if by_columns else "C")


def read_tiff(data: bytes, max_pixels: int, channels: int) -> Pixels:
    """Return the bands of the first page of a TIFF, or one band from each page, [H, W, C]."""
    from hexa.runtime.packages import import_extra

    tifffile: Any = import_extra("tifffile", "tiff", "a TIFF with several bands")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # hexa reports damaged files itself
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        first = file.pages[0]
        pages = [first]
        if first.samplesperpixel == 1 and len(file.pages) == channels:
            pages = [file.pages[number].aspage() for number in range(channels)]
        else:
            check(first.samplesperpixel, channels)
        for page in pages:
            _check_page(page, data, max_pixels, channels)
        arrays = [page.asarray(maxworkers=1) for page in pages]
    if len(arrays) > 1:
        return np.stack(arrays, 2)
    is_by_band = first.planarconfig == 2 and first.samplesperpixel > 1
    return np.moveaxis(arrays[0], 0, 2) if is_by_band else arrays[0]


def _check_page(page: Any, data: bytes, max_pixels: int, channels: int) -> None:
    """Raise DecodeError for a page of a TIFF that is truncated, too large or in an unsupported layout."""
    bands = page.samplesperpixel
    if page.imagedepth != 1 or page.compression not in _COMPRESSIONS or page.dtype is None:
        compression = int(page.compression)
        raise DecodeError(
            f"a TIFF with {bands} bands, depth {page.imagedepth}, compression {compression}, type "
            f"{page.dtype}; expected {channels} bands, uncompressed or compressed by LZW, deflate "
            "or PackBits"
        )
    high = min(page.rowsperstrip, page.imagelength)
    wide = page.imagewidth
    if page.is_tiled:
        high = page.tilelength
        wide = page.tilewidth
    check_size(page.imagelength, page.imagewidth, max_pixels)
    check_size(high, wide, max_pixels)
    pixels = page.imagelength * page.imagewidth
    check_bytes(pixels * page.dtype.itemsize * max(bands, channels))
    parts = min(len(page.dataoffsets), len(page.databytecounts))
    if parts < math.prod(page.chunked):  # missing parts would be black
        raise DecodeError("the TIFF is truncated: strips or tiles are missing")
    largest = high * wide * bands * page.dtype.itemsize
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        if not 0 < count <= len(data) - offset:
            raise DecodeError("the TIFF is truncated")
        if page.compression in _DEFLATE:
            part = data[offset : offset + count]
            if len(zlib.decompressobj().decompress(part, largest + 1)) > largest:
                raise DecodeError("a strip or tile of the TIFF unpacks to more pixels than it has")
