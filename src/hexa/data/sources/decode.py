"""Reads an image file within bounds of size and work, and decodes it to an upright tensor.

A plain JPEG is decoded here, by torchvision; `hexa.data.sources.formats` decodes all other images.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from hexa.config import UserError
from hexa.runtime.parsing import read_resource

try:  # torchvision 0.29 announces the removal of these functions; without them, PIL decodes up to three times slower
    from torchvision.io import ImageReadMode, decode_image
except ImportError:
    decode_image = None

#: Images with more pixels are refused by their header. At this number, PIL warns of "decompression bombs" (kilobytes
#: that unpack to gigabytes), but it refuses only images of twice the number.
MAX_IMAGE_PIXELS = 89_478_485
#: Maximum size of a file in bytes; photographs are a thousand times smaller.
MOST_BYTES = 1 << 30
#: Maximum of pixels × scans of a JPEG, a few seconds of work; usual files have at most ten scans.
_MOST_SCANNED = 10**10
#: Minimum size of a scan of a JPEG, in bytes.
_SCAN_BYTES = 10
_TABLE = read_resource("hexa.data.sources", "kinds.yaml")
#: Number of bytes at the beginning of a file that `kind_of` needs.
HEAD = 256
#: Suffixes of images: a file with such a suffix is an image, possibly a broken one. Other files are opened.
EXTENSIONS = frozenset(_TABLE["images"])
#: Formats that need an extra: name of the extra, and module that reads the format.
EXTRAS: dict[str, list[str]] = _TABLE["extras"]
#: All formats, for messages.
ALL: tuple[str, ...] = (*_TABLE["beginnings"], *_TABLE["brands"])
#: Maximum length of a suffix.
_LONGEST_SUFFIX = 16
_BEGINNINGS = [f"({one})".encode() for one in _TABLE["beginnings"].values()]
#: Formats with up to 16 bits, for `largest`.
_DEEP = ("NPY", "TIFF", "PNG")
_ANY = re.compile(b"|".join(_BEGINNINGS), re.DOTALL)


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


def decode(
    data: bytes,
    max_pixels: int = MAX_IMAGE_PIXELS,
    channels: int = 3,
    max_value: int | None = None,
    shrink: int = 1,
) -> Tensor:
    """Return the image [channels, H, W]: uint8, uint16, or float32 in [0, 1].

    Three channels: 8-bit RGB, except for .npy files, which keep their values. Grey is repeated, palettes and CMYK are
    converted, 16 bits are scaled to 8, transparency is composed over white, the EXIF orientation is applied, and the
    first of several frames is read. One channel: grey at full depth; colours are converted to grey. Any other number:
    all bands unchanged, from .npy files [H, W] or [H, W, C], from bands or pages of a TIFF (needs tifffile), or from a
    PNG with transparency. max_value: value of white in images of more than 8 bits. shrink: decode an RGB JPEG at
    1/shrink of its size (2, 4 or 8; sides are rounded up), which is much faster.

    Raises DecodeError for unreadable bytes, a wrong number of bands, and more than `max_pixels` pixels; UserError if
    tifffile is missing.
    """
    try:
        if channels == 3 and shrink == 1:
            image = _plain_jpeg(data, max_pixels)
            if image is not None:
                return image
        from hexa.data.sources import formats  # plain JPEGs need none of it

        return formats.decode(data, max_pixels, channels, max_value, shrink)
    except (DecodeError, UserError):
        raise
    except Exception as error:  # parsers raise all sorts of exceptions on damaged bytes
        raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from None


def _plain_jpeg(data: bytes, max_pixels: int) -> Tensor | None:
    """Return a JPEG in grey or colour as uint8 RGB [3, H, W], 1.5 to 3 times faster than by PIL, with equal pixels.

    None for other and for damaged images. Raises DecodeError for an image of too much work.
    """
    if decode_image is None or kind_of(data) != "JPEG":
        return None
    try:
        header = JpegImageFile(io.BytesIO(data))
    except Exception:  # PIL reports the problem later
        return None
    check_jpeg(data, header, max_pixels)
    if header.mode not in ("L", "RGB"):
        return None
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    with suppress(Exception):  # PIL gives a better message
        image: Tensor = decode_image(raw, mode=ImageReadMode.UNCHANGED, apply_exif_orientation=True)
        return image.expand(3, -1, -1).contiguous()
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of decoders (odd metadata, large images, deprecations) in the whole process.

    A change of filters costs time, so use this context around passes over many images, not around a single image.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(PIL|torchvision\.io)\b")
        yield


def kind_of(data: bytes) -> str | None:
    """Return the format of an image that begins with `data`, such as "JPEG"; None for other files."""
    found = _ANY.match(data)
    if found is not None:
        return ALL[(found.lastindex or 1) - 1]
    if data[4:8] == b"ftyp":
        return _media_kind(data)
    return None


def _media_kind(data: bytes) -> str | None:
    """Return the format of an ISO media file by its brands, which are four bytes each."""
    end = min(int.from_bytes(data[:4], "big"), HEAD)
    brands = {data[at : at + 4].decode("latin-1") for at in (8, *range(16, end, 4))}
    return next((kind for kind, names in _TABLE["brands"].items() if brands & {*names}), None)


@functools.cache
def missing_extra(kind: str) -> str | None:
    """Return the command that installs the reader of a format; None if the reader is installed."""
    if kind not in EXTRAS:
        return None
    from hexa.runtime.packages import install_extra

    extra, module = EXTRAS[kind]
    return None if importlib.util.find_spec(module) else install_extra(extra)


def why_left_out(name: str, read_first: Callable[[int], bytes]) -> str | None:
    """Return None for an image; for any other file, its kind, such as its suffix, with a remedy if there is one.

    The content decides, unless the suffix is in `EXTENSIONS` or is a text suffix, because opening a million files takes
    minutes. read_first: number of bytes -> beginning of the file; may raise DecodeError.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix in EXTENSIONS:
        return None
    if suffix in _TABLE["texts"]:
        return suffix
    if not 1 < len(suffix) <= _LONGEST_SUFFIX:
        suffix = ""
    try:
        kind = kind_of(read_first(HEAD))
    except DecodeError:
        return "unreadable"
    if kind is None or (kind == "TIFF" and suffix in _TABLE["raw"]):
        return suffix or "without suffix"
    command = missing_extra(kind)
    return None if command is None else f"{suffix or kind} ({command})"


def largest(data: bytes, max_pixels: int = MAX_IMAGE_PIXELS) -> int:
    """Return the largest value of a 16-bit image; 0 for other and for damaged images."""
    with suppress(Exception):  # as in `decode`
        if kind_of(data) in _DEEP:
            from hexa.data.sources import formats

            return formats.largest(data, max_pixels)
    return 0


def unit(images: Tensor) -> Tensor:
    """Pixels as float32 in [0, 1]: x / 255 for uint8, x / 65535 for uint16, x for floats."""
    if images.is_floating_point():
        return images.float()
    return images.float().div_(255 if images.dtype == torch.uint8 else 65535)


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
