"""From the bytes of an image file to uint8 RGB, upright, whatever its colours, depth or orientation."""

from __future__ import annotations

import io
import os
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

try:  # torchvision 0.29 announces that these will go; then PIL decodes everything, about three times slower
    from torchvision.io import ImageReadMode, decode_image
except ImportError:
    decode_image = None

EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2"))

#: A file larger than this is not an image that anybody trains on; photographs are a thousand times smaller.
MOST_BYTES = 1 << 30


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore what decoders warn about: odd metadata, large images, being deprecated.

    The setting is the whole process's while it lasts, so it is for passes over many images, not for one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(PIL|torchvision\.io)\b")
        yield


# What PIL raises on broken files, seen in the wild.
_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    TypeError,
    KeyError,
    struct.error,
    Image.DecompressionBombError,
)


class DecodeError(Exception):
    """An image that cannot be read; the message is one line."""


def read(path: str | Path, first: int = -1) -> bytes:
    """The bytes of a file, or its `first` ones. Raises DecodeError for whatever cannot be read to its end."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise DecodeError("not a regular file")
        if status.st_size > MOST_BYTES:
            raise DecodeError(too_large(status.st_size))
        with open(path, "rb") as file:
            return file.read(first)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise DecodeError(getattr(error, "strerror", None) or str(error)) from None


def too_large(size: int) -> str:
    return f"{size:,} bytes; for one image no more than {MOST_BYTES:,} are read"


def decode(data: bytes) -> Tensor:
    """The image as uint8 [3, H, W] in RGB. Raises DecodeError.

    Grey is repeated over the channels, palettes are looked up, CMYK is converted, 16 bits are scaled to 8,
    transparent pixels are laid over white, and the EXIF orientation is applied. Plain 8-bit JPEG and PNG take a path
    three times faster than PIL, with the same pixels.
    """
    fast = _decode_plain(data)
    return fast if fast is not None else decode_with_pil(data)


def _decode_plain(data: bytes) -> Tensor | None:
    plain_png = data[:8] == b"\x89PNG\r\n\x1a\n" and data[24:26] in (b"\x08\x02", b"\x08\x00")  # 8 bits; RGB or grey
    if decode_image is None or not (plain_png or data[:3] == b"\xff\xd8\xff"):
        return None
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    try:
        image: Tensor = decode_image(raw, mode=ImageReadMode.UNCHANGED, apply_exif_orientation=True)
    except (RuntimeError, ValueError):
        return None  # PIL decides, and says why
    if image.shape[0] == 1:
        return image.expand(3, -1, -1).contiguous()
    return image if image.shape[0] == 3 else None


def decode_with_pil(data: bytes, shrink: int = 1) -> Tensor:
    """As `decode`, by PIL. A JPEG comes at 1/shrink of its size (1, 2, 4 or 8, sides rounded up), for far less work."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if shrink > 1:
                image.draft("RGB", (image.width // shrink, image.height // shrink))
            upright = ImageOps.exif_transpose(image)
            return _to_tensor(to_rgb(upright if upright is not None else image))
    except _UNREADABLE as error:
        raise DecodeError(_reason(error)) from None


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(H, W) of a JPEG as it will stand upright, from its header alone; None for anything else or a broken header."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (image.width, image.height) if turned else (image.height, image.width)
    except _UNREADABLE:
        return None


def _reason(error: BaseException) -> str:
    """One line, without the addresses of objects that mean nothing to a reader."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or not one of a known format"
    return " ".join(str(error).split()) or type(error).__name__


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL image as 8-bit RGB."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _from_wide(np.asarray(image)).convert("RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _from_wide(values: Any) -> Image.Image:
    """Grey values of 16 or 32 bits, or floats, as 8-bit grey, by the range of their type and never by their own."""
    if values.dtype.kind == "f":
        top = 1.0 if values.size and np.nanmax(values) <= 1 else 255.0
    else:
        top = 255.0 if values.dtype.itemsize > 2 and values.max(initial=0) <= 255 else 65535.0
    return Image.fromarray(np.nan_to_num(np.clip(values / top * 255, 0, 255)).round().astype(np.uint8))


def _to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
