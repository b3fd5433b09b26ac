"""Reads image files within bounds of size and work, and refuses hostile files before they are decoded."""

from __future__ import annotations

import math
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

#: Images with more pixels are refused by their header. At this number, PIL warns of "decompression bombs" (kilobytes
#: that unpack to gigabytes), but it refuses only images of twice the number.
MAX_IMAGE_PIXELS = 89_478_485
#: Maximum size of a file in bytes; photographs are a thousand times smaller.
MOST_BYTES = 1 << 30
#: Maximum of pixels × scans of a JPEG, a few seconds of work; usual files have at most ten scans.
_MOST_SCANNED = 10**10
#: Minimum size of a scan of a JPEG, in bytes.
_SCAN_BYTES = 10
#: TIFF tags.
_SAMPLES_PER_PIXEL = 277
_PLANAR_CONFIGURATION = 284
_TILE_WIDTH = 322
_TILE_LENGTH = 323
_SAMPLE_FORMAT = 339
#: TIFF sample format of signed integers.
_SIGNED = 2
#: Accepted TIFF compressions: none, LZW, PackBits, and the two codes for deflate.
_COMPRESSIONS = (1, 5, 32773, 8, 32946)
#: TIFF codes for deflate, which can unpack a few bytes to gigabytes.
_DEFLATE = (8, 32946)


class DecodeError(Exception):
    """An unreadable image; the message is one line."""


def read(path: str | Path, first: int = -1) -> bytes:
    """Return the contents of a file, or its `first` bytes. Raises DecodeError for an unreadable file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise DecodeError("not a regular file")
        if first < 0:
            check_bytes(status.st_size)
        with open(path, "rb") as file:
            return file.read(first)
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        raise DecodeError(getattr(error, "strerror", None) or str(error)) from None


def check_bytes(size: int) -> None:
    """Raise DecodeError for a file with too many bytes."""
    if size > MOST_BYTES:
        raise DecodeError(f"the file has {size:,} bytes; an image may have at most {MOST_BYTES:,}")


def check_size(height: int, width: int, max_pixels: int) -> str:
    """Return the size in words. Raises DecodeError for an image without pixels, or with more than `max_pixels`."""
    size = f"{width} × {height} pixels"
    if height * width < 1:
        raise DecodeError(f"the image has {size}")
    if height * width > max_pixels:
        raise DecodeError(f"{size}, more than the limit of {max_pixels:,} (max_image_pixels)")
    return size


def check_jpeg(data: bytes, image: JpegImageFile, max_pixels: int) -> None:
    """Raise DecodeError for a JPEG with too many pixels, or with scans that take minutes to decode."""
    size = check_size(image.height, image.width, max_pixels)
    pixels = image.height * image.width
    # a scan has few bytes but covers all pixels, so that a megabyte can take half an hour
    if pixels * len(data) > _SCAN_BYTES * _MOST_SCANNED:
        content = np.frombuffer(data, dtype=np.uint8)
        scans = np.count_nonzero((content[:-1] == 0xFF) & (content[1:] == 0xDA))
        if pixels * scans > _MOST_SCANNED:
            raise DecodeError(
                f"a JPEG of {size} in {scans:,} scans, which would take minutes to decode"
            )


def check_tiff(image: TiffImageFile, max_pixels: int) -> None:
    """Raise DecodeError for a TIFF that PIL misreads: missing strips become black, signed numbers unsigned."""
    tags = image.tag_v2
    # PIL allocates whole tiles
    check_size(tags.get(_TILE_LENGTH, 1), tags.get(_TILE_WIDTH, 1), max_pixels)
    if image.mode == "L" and _SIGNED in (tags.get(_SAMPLE_FORMAT) or ()):
        raise DecodeError(
            "pixels have type int8; expected uint8, uint16, or floats between 0 and 1"
        )
    if (
        image.tile and image.tile[0][0] == "raw"
    ):  # in compressed files, libtiff reports missing strips
        planes = tags.get(_SAMPLES_PER_PIXEL, 1) if tags.get(_PLANAR_CONFIGURATION) == 2 else 1
        stored = 0
        for tile in image.tile:
            left, top, right, bottom = tile[1]  # type: ignore[misc]
            stored += (right - left) * (bottom - top)
        if stored < image.width * image.height * planes:
            raise DecodeError("the TIFF is truncated: strips or tiles are missing")


def check_page(page: Any, data: bytes, max_pixels: int, channels: int) -> None:
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
