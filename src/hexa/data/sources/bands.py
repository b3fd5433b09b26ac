"""Reads images that PIL cannot read at full depth: .npy, TIFFs of several bands, 16-bit colours."""

from __future__ import annotations

import io
import logging
import math
from typing import Any

import numpy as np
import torch
import torchvision.io
from numpy.lib import format as npy
from numpy.typing import NDArray

from hexa.data.sources import pil
from hexa.data.sources.kinds import kind_of
from hexa.data.sources.limits import DecodeError, check_page, check_size

Pixels = NDArray[Any]
#: Position of the bit depth in a PNG, and the depth of 16 bits.
_PNG_DEPTH = slice(24, 25)
_SIXTEEN = b"\x10"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: TIFF tag.
_BITS_PER_SAMPLE = 258


def deep(data: bytes, max_pixels: int) -> Pixels | None:
    """Return the values [H, W] or [H, W, C] of an image of more than 8 bits, not turned upright; None for others."""
    kind = kind_of(data)
    if kind != "TIFF" and (kind != "PNG" or data[_PNG_DEPTH] != _SIXTEEN):
        return None
    image: Any = pil.opened(data, max_pixels)
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        return values.astype(np.uint16) if kind == "PNG" else values
    if kind == "PNG":  # PIL drops the lower 8 bits of colours
        pixels = torchvision.io.decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return np.asarray(pixels.permute(1, 2, 0))
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, ())
    if image.mode in ("RGB", "RGBA") and 16 in bits:
        return read_tiff(data, max_pixels, len(bits))
    return None


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
            check_page(page, data, max_pixels, channels)
        arrays = [page.asarray(maxworkers=1) for page in pages]
    if len(arrays) > 1:
        return np.stack(arrays, 2)
    is_by_band = first.planarconfig == 2 and first.samplesperpixel > 1
    return np.moveaxis(arrays[0], 0, 2) if is_by_band else arrays[0]
