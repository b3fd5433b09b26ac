"""Images with any number of bands, as 8-bit or 16-bit integers or floats: .npy, TIFF, and everything PIL reads."""

from __future__ import annotations

import io
import logging
import math
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torchvision.io
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError
from hexa.data.sources import decode as decoding
from hexa.data.sources.decode import DecodeError
from hexa.data.sources.kinds import kind_of
from hexa.runtime.packages import import_extra

Pixels = NDArray[Any]
#: Where a PNG says how many bits a value has.
_PNG_DEPTH = 24
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: TIFF compressions that are read: none, LZW, PackBits, and the two codes for deflate, which can turn a few bytes into
#: gigabytes.
_BITS_PER_SAMPLE = 258
_COMPRESSIONS = (1, 5, 32773, 8, 32946)
_DEFLATE = (8, 32946)


def decode(
    data: bytes,
    max_pixels: int = decoding.MAX_IMAGE_PIXELS,
    channels: int = 3,
    max_value: int | None = None,
) -> Tensor:
    """The image as [channels, H, W]: uint8, uint16, or float32 in [0, 1].

    Three channels: 8-bit RGB as `sources.decode` makes it (except .npy files, which are read as they are). One
    channel: grey at full depth; colours are converted. Any other number: all bands as they are, from .npy files
    [H, W] or [H, W, C], from the bands or pages of a TIFF (needs tifffile), or from a PNG with transparency.
    max_value: what is white in images of more than 8 bits. Raises DecodeError for any bytes that cannot be read and for
    a wrong number of bands; UserError if tifffile is missing.
    """
    kind = kind_of(data)
    try:
        if kind == "NPY":
            values = _white(_read_npy(data, max_pixels), max_value)
        elif channels == 3:
            deep = None if max_value is None else _deep(data, max_pixels)
            if deep is None:
                return decoding.decode(data, max_pixels)
            return decoding.of_levels(data, _white(deep, max_value), max_pixels)
        elif channels > 1 and kind == "TIFF":
            values = _white(_read_tiff(data, max_pixels, channels), max_value)
        else:
            values = _white(_read_with_pil(data, max_pixels, channels), max_value)
            values = decoding.in_range(values)
        return _tensor(values, channels)
    except (DecodeError, UserError):
        raise
    except Exception as error:  # as in `hexa.data.sources.decode.decode_with_pil`
        raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from None


def may_be_deep(data: bytes) -> bool:
    """False if an image that begins with `data` has 8 bits; True if it may have more."""
    kind = kind_of(data)
    return kind in ("NPY", "TIFF") or (
        kind == "PNG" and data[_PNG_DEPTH : _PNG_DEPTH + 1] == b"\x10"
    )


def largest(data: bytes, max_pixels: int = decoding.MAX_IMAGE_PIXELS) -> int | None:
    """The largest value of an image of 16-bit integers; None for all others and for damaged ones."""
    with suppress(Exception):  # as in `decode`
        if not may_be_deep(data):
            return None
        values = _read_npy(data, max_pixels) if kind_of(data) == "NPY" else _deep(data, max_pixels)
        if values is not None and values.dtype.kind in "ui" and values.dtype.itemsize > 1:
            return int(values.max())
    return None


def _deep(data: bytes, max_pixels: int) -> Pixels | None:
    """The values [H, W] or [H, W, C] of an image of more than 8 bits, not turned upright; None for all others."""
    if not may_be_deep(data):
        return None
    image: Any
    if kind_of(data) == "PNG":
        image = decoding.opened(data, max_pixels)
        if image.mode.startswith("I"):
            return np.asarray(image).astype(np.uint16)
        pixels = torchvision.io.decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return np.asarray(pixels.permute(1, 2, 0))  # PIL drops the lower 8 bits of colours
    if kind_of(data) == "TIFF":
        image = decoding.opened(data, max_pixels)
        if image.mode in ("RGB", "RGBA") and 16 in image.tag_v2.get(_BITS_PER_SAMPLE, ()):
            return _read_tiff(data, max_pixels, len(image.tag_v2[_BITS_PER_SAMPLE]))
        return np.asarray(image) if image.mode == "F" or image.mode.startswith("I") else None
    return None


def _white(values: Pixels, max_value: int | None) -> Pixels:
    """Values of more than 8 bits, from 0 to `max_value`, as uint16 from 0 to 65535. Raises DecodeError for any beyond."""
    if max_value is None or values.dtype == np.uint8:
        return values
    low = float(values.min())
    high = float(values.max())
    if not (low >= 0 and high <= max_value):  # also true of nan
        raise DecodeError(f"values range from {low:g} to {high:g}, beyond max_value={max_value}")
    return np.round(values.astype(np.float64) * (65535 / max_value)).astype(np.uint16)


def _check_bands(bands: int, channels: int, hint: str = "") -> None:
    if bands != channels:
        plural = "s" if bands != 1 else ""
        raise DecodeError(
            f"{bands} band{plural} where {channels} are expected (network.channels){hint}"
        )


def _tensor(values: Pixels, channels: int) -> Tensor:
    """[H, W] or [H, W, C] as [channels, H, W]. Raises DecodeError for pixel types or channels that are not accepted."""
    values = values[:, :, None] if values.ndim == 2 else values
    if values.shape[2] != 1 or channels != 3:  # grey is repeated
        _check_bands(
            values.shape[2],
            channels,
            "; bands come last, [H, W, C]" if len(values) == channels else "",
        )
    if values.dtype.kind == "f":
        values = decoding.in_range(values)
    elif values.dtype.kind != "u" or values.dtype.itemsize > 2:
        raise DecodeError(
            f"pixels have type {values.dtype}; expected uint8, uint16, or floats between 0 and 1"
        )
    native = np.array(values.transpose(2, 0, 1), values.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(native).expand(channels, -1, -1).contiguous()


def _read_npy(data: bytes, max_pixels: int) -> Pixels:
    """The array of a .npy file, [H, W] or [H, W, C]; nothing is ever unpickled."""
    file = io.BytesIO(data)
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(file)](file)
    except Exception:  # numpy's message would mean nothing to a user
        raise DecodeError("the header of this .npy file cannot be read") from None
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        raise DecodeError("arrays of Python objects or records are not accepted")
    if len(shape) not in (2, 3) or not all(isinstance(side, int) and side >= 1 for side in shape):
        raise DecodeError(f"the array has shape {shape}; expected [H, W] or [H, W, C]")
    decoding.check_size(shape[0], shape[1], max_pixels)
    if dtype.itemsize * math.prod(shape) != len(data) - file.tell():
        raise DecodeError(
            f"an array of shape {shape} and type {dtype} that is truncated or has extra bytes at its end"
        )
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(
        shape, order="F" if by_columns else "C"
    )


def _read_with_pil(data: bytes, max_pixels: int, channels: int) -> Pixels:
    image = decoding.upright(data, max_pixels)
    if channels == 1 and image.mode not in ("L", "F") and not image.mode.startswith("I"):
        image = decoding.to_rgb(image).convert("L")
    return np.asarray(image)


def _read_tiff(data: bytes, max_pixels: int, channels: int) -> Pixels:
    """The bands of the first page, or one band from each page, [H, W, C]."""
    tifffile: Any = import_extra("tifffile", "tiff", "a TIFF with several bands")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # we report damaged files ourselves
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        pages = [file.pages[0]]
        if pages[0].samplesperpixel == 1 and len(file.pages) == channels:
            pages = [file.pages[number].aspage() for number in range(channels)]
        else:
            _check_bands(pages[0].samplesperpixel, channels)
        for page in pages:
            _check_page(page, data, max_pixels, channels)
        arrays = [page.asarray(maxworkers=1) for page in pages]
    if len(arrays) > 1:
        return np.stack(arrays, 2)
    # some are stored band by band
    return (
        np.moveaxis(arrays[0], 0, 2)
        if pages[0].planarconfig == 2 and pages[0].samplesperpixel > 1
        else arrays[0]
    )


def _check_page(page: Any, data: bytes, max_pixels: int, channels: int) -> None:
    """Raise DecodeError for a page that is truncated, or too large, packed or unpacked."""
    bands = page.samplesperpixel
    packed = page.compression in _DEFLATE
    if page.imagedepth != 1 or page.compression not in _COMPRESSIONS or page.dtype is None:
        layout = f"{bands} bands, depth {page.imagedepth}, compression {int(page.compression)}, type {page.dtype}"
        accepted = f"{channels} bands, uncompressed or compressed by LZW, deflate or PackBits"
        raise DecodeError(f"a TIFF with {layout}; expected {accepted}")
    high = min(page.rowsperstrip, page.imagelength)
    wide = page.imagewidth
    if page.is_tiled:
        high = page.tilelength
        wide = page.tilewidth
    decoding.check_size(page.imagelength, page.imagewidth, max_pixels)
    decoding.check_size(high, wide, max_pixels)
    if (
        whole := page.imagelength * page.imagewidth * page.dtype.itemsize * max(bands, channels)
    ) > decoding.MOST_BYTES:
        raise DecodeError(decoding.too_large(whole))
    if min(len(page.dataoffsets), len(page.databytecounts)) < math.prod(
        page.chunked
    ):  # would be black
        raise DecodeError("the TIFF is truncated: strips or tiles are missing")
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        if not 0 < count <= len(data) - offset:
            raise DecodeError("the TIFF is truncated")
        largest = high * wide * bands * page.dtype.itemsize
        if (
            packed
            and len(zlib.decompressobj().decompress(data[offset : offset + count], largest + 1))
            > largest
        ):
            raise DecodeError(
                "a strip or tile of the TIFF unpacks to more pixels than it should hold"
            )
