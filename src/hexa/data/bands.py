"""Images of any number of bands, of 8 or 16 bits or floats: .npy files, TIFF, and what PIL reads."""

from __future__ import annotations

import io
import logging
import math
import zlib
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError
from hexa.data import decode as decoding
from hexa.data.decode import DecodeError
from hexa.runtime.packages import import_extra

Pixels = NDArray[Any]
_NPY, _TIFF = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: Compressions of TIFF: none, LZW, PackBits, and the two names of deflate, of which a few bytes can be gigabytes.
_COMPRESSIONS, _DEFLATE = (1, 5, 32773, 8, 32946), (8, 32946)


def decode(data: bytes, max_pixels: int = decoding.MAX_IMAGE_PIXELS, channels: int = 3) -> Tensor:
    """The image as [channels, H, W]: uint8, uint16, or float32 in [0, 1].

    Three channels are 8-bit RGB as `hexa.data.decode` makes it, but for .npy files. One channel is grey of all its
    bits, to which colours are converted. Of other numbers all bands are taken as they are: of .npy files [H, W] or
    [H, W, C], of TIFF (by the package tifffile) bands or pages, of PNG with transparency. Raises DecodeError, whatever
    the bytes are, and for another number of bands; UserError if tifffile is needed and not installed.
    """
    try:
        if data.startswith(_NPY):
            values = _of_npy(data, max_pixels)
        elif channels == 3:
            return decoding.decode(data, max_pixels)
        elif channels > 1 and data.startswith(_TIFF):
            values = _of_tiff(data, max_pixels, channels)
        else:
            values = _of_pil(data, max_pixels, channels)
        return _tensor(values, channels)
    except (DecodeError, UserError):
        raise
    except Exception as error:  # as in `hexa.data.decode.decode_with_pil`
        raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from None


def _check_bands(found: int, channels: int, hint: str = "") -> None:
    if found != channels:
        bands = f"{found} band{'s' if found != 1 else ''}"
        raise DecodeError(f"{bands} where {channels} are expected (network.channels){hint}")


def _tensor(values: Pixels, channels: int) -> Tensor:
    """[H, W] or [H, W, C] as [channels, H, W]. Raises DecodeError for pixels that can't be, or of other channels."""
    values = values[:, :, None] if values.ndim == 2 else values
    if values.shape[2] != 1 or channels != 3:  # grey is repeated
        _check_bands(values.shape[2], channels, "; bands come last, [H, W, C]" if len(values) == channels else "")
    if values.dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        if not (low >= 0 and high <= 1):  # nan is neither
            raise DecodeError(f"floats from {low:g} to {high:g}; they must be from 0 to 1")
        values = values.astype(np.float32)
    elif values.dtype.kind != "u" or values.dtype.itemsize > 2:
        raise DecodeError(f"pixels of type {values.dtype}; uint8, uint16 and floats from 0 to 1 are read")
    native = np.array(values.transpose(2, 0, 1), values.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(native).expand(channels, -1, -1).contiguous()


def _of_npy(data: bytes, max_pixels: int) -> Pixels:
    """The array of a .npy file, [H, W] or [H, W, C]; nothing in it is ever unpickled."""
    file = io.BytesIO(data)
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(file)](file)
    except Exception:  # whose words are of Python
        raise DecodeError("a .npy file whose header cannot be read") from None
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        raise DecodeError("an array of Python objects or of fields, which are not read")
    if len(shape) not in (2, 3) or not all(isinstance(side, int) and side >= 1 for side in shape):
        raise DecodeError(f"an array of shape {shape}; [H, W] and [H, W, C] are read")
    _check(shape, max_pixels)
    if dtype.itemsize * math.prod(shape) != len(data) - file.tell():
        raise DecodeError(f"an array of shape {shape} and type {dtype} that is cut short, or goes on behind its end")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")


def _check(shape: tuple[int, ...], max_pixels: int) -> None:
    if shape[0] * shape[1] > max_pixels:
        size = f"{shape[1]} × {shape[0]} pixels"
        raise DecodeError(f"{size}, more than the limit of {max_pixels:,} (max_image_pixels)")


def _of_pil(data: bytes, max_pixels: int, channels: int) -> Pixels:
    image = decoding.upright(data, max_pixels)
    if channels == 1 and image.mode not in ("L", "F") and not image.mode.startswith("I"):
        image = decoding.to_rgb(image).convert("L")
    values = np.asarray(image)
    if values.dtype == np.int32 and values.min() >= 0 and values.max() <= 65535:  # as some versions read 16-bit PNG
        values = values.astype(np.uint16)
    return values


def _of_tiff(data: bytes, max_pixels: int, channels: int) -> Pixels:
    """The bands of the first page, or the first bands of as many pages as needed, [H, W, C]."""
    tifffile: Any = import_extra("tifffile", "tiff", "a TIFF of several bands")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what is wrong with a file is said in our words
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
    apart = pages[0].planarconfig == 2 and pages[0].samplesperpixel > 1  # whole bands, one after another
    return np.moveaxis(arrays[0], 0, 2) if apart else arrays[0]


def _check_page(page: Any, data: bytes, max_pixels: int, channels: int) -> None:
    """Raise DecodeError for a page that is not whole, or larger than it may be, if only where it is unpacked."""
    bands, packed = page.samplesperpixel, page.compression in _DEFLATE
    if page.imagedepth != 1 or page.compression not in _COMPRESSIONS or page.dtype is None:
        what = f"{bands} bands, depth {page.imagedepth}, compression {int(page.compression)}, type {page.dtype}"
        raise DecodeError(f"a TIFF of {what}; {channels} bands, unpacked or by LZW, deflate or PackBits are read")
    high, wide = min(page.rowsperstrip, page.imagelength), page.imagewidth
    if page.is_tiled:
        high, wide = page.tilelength, page.tilewidth
    _check((page.imagelength, page.imagewidth), max_pixels)
    _check((high, wide), max_pixels)
    whole = page.imagelength * page.imagewidth * page.dtype.itemsize * max(bands, channels)
    if whole > decoding.MOST_BYTES:
        raise DecodeError(decoding.too_large(whole))
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        if not 0 < count <= len(data) - offset:
            raise DecodeError("a TIFF that is cut short")
        largest = high * wide * bands * page.dtype.itemsize
        if packed and len(zlib.decompressobj().decompress(data[offset : offset + count], largest + 1)) > largest:
            raise DecodeError("a TIFF with a strip or tile that unpacks to more than it holds")
