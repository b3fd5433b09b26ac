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
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torch import Tensor

from hexa.data import jpeg

try:  # torchvision 0.29 announces that these will go; then PIL decodes everything, up to three times slower
    from torchvision.io import ImageReadMode, decode_image
except ImportError:
    decode_image = None

EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2"))
#: Images of more pixels are refused by their header, undecoded: the number from which on PIL warns of "decompression
#: bombs", files of some kilobytes that unfold to gigabytes. (PIL itself refuses only twice as many.)
MAX_IMAGE_PIXELS = 89_478_485

_PNG = b"\x89PNG\r\n\x1a\n"
#: Who reads what by the first bytes. The list is closed: PIL's own has forty more formats, few of which anybody tests
#: against hostile files, and one (EPS) is a program that it hands to Ghostscript.
_READERS: tuple[tuple[type[ImageFile], tuple[bytes, ...]], ...] = (
    (JpegImageFile, (jpeg.BEGINNING,)),
    (PngImageFile, (_PNG,)),
    (BmpImageFile, (b"BM",)),
    (GifImageFile, (b"GIF87a", b"GIF89a")),
    (TiffImageFile, (b"II", b"MM")),
    (WebPImageFile, (b"RIFF",)),
    (Jpeg2KImageFile, (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  \r\n\x87\n")),
    (PpmImageFile, (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf")),
)
#: How an image is turned upright, by its EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Pixels times scans that a JPEG may ask for, some seconds of work; usual ones have ten scans at most.
_MOST_SCANNED = 10**10
#: Pixels whose colours are converted at a time: what lies between stays in cache, and is little beside a large image.
_BLOCK = 2**16


class DecodeError(Exception):
    """An image that cannot be read; the message is one line."""


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


def decode(data: bytes, max_pixels: int = MAX_IMAGE_PIXELS) -> Tensor:
    """The image as uint8 [3, H, W] in RGB. Raises DecodeError, whatever the bytes are; for more pixels, undecoded.

    Grey is repeated over the channels, palettes are looked up, CMYK is converted, 16 bits are scaled to 8,
    transparent pixels are laid over white, and the EXIF orientation is applied; of several frames the first is taken.
    JPEGs in colour or grey take a path 1.5 to 3 times as fast as PIL, with the same pixels.
    """
    frame = jpeg.frame_of(data)
    if decode_image is not None and frame is not None and frame.channels in (1, 3):
        _check_size(data, frame, max_pixels)
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            image: Tensor = decode_image(raw, mode=ImageReadMode.UNCHANGED, apply_exif_orientation=True)
        except Exception:
            return decode_with_pil(data, max_pixels=max_pixels)  # it decides, and says why
        return image.expand(3, -1, -1).contiguous() if image.shape[0] == 1 else image
    return decode_with_pil(data, max_pixels=max_pixels)


def decode_with_pil(data: bytes, shrink: int = 1, max_pixels: int = MAX_IMAGE_PIXELS) -> Tensor:
    """As `decode`, by PIL. A JPEG comes at 1/shrink of its size (1, 2, 4 or 8, sides rounded up), for far less work."""
    try:
        return _to_tensor(upright(data, max_pixels, shrink))
    except DecodeError:
        raise
    except Exception as error:
        # Anything may come of a stranger's bytes: parsers written for good files raise what happens to go wrong in
        # them, so that a list of exceptions grows for ever. Whatever it was, the file is what is at fault.
        raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from None


def upright(data: bytes, max_pixels: int, shrink: int = 1) -> Image.Image:
    """The image as PIL has it, turned upright. Raises whatever PIL does."""
    image = _opened(data, max_pixels)
    if shrink > 1:
        image.draft("RGB", (image.width // shrink, image.height // shrink))
    image.load()
    turn = _TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(H, W) of a JPEG as it will stand upright, from its header alone; None for anything else or a broken header."""
    if not data.startswith(jpeg.BEGINNING):
        return None
    try:
        image = JpegImageFile(io.BytesIO(data))
    except Exception:  # see decode_with_pil
        return None
    return (image.width, image.height) if _orientation(image) >= 5 else (image.height, image.width)


def _opened(data: bytes, max_pixels: int) -> ImageFile:
    """The image with its header read and nothing more."""
    for reader, beginnings in _READERS:
        if data.startswith(beginnings):
            try:
                image = reader(io.BytesIO(_plain_png(data) if reader is PngImageFile else data))
            except SyntaxError as error:  # so PIL calls a header that means nothing to it, or made its parser stumble
                reason = error if error.__cause__ is None else "its header is broken"
                raise DecodeError(f"cannot be read as {reader.format}: {reason}") from None
            whole = jpeg.Frame(image.height, image.width, 0, scans=reader is JpegImageFile)
            _check_size(data, jpeg.frame_of(data) or whole, max_pixels)
            if isinstance(image, TiffImageFile):  # it is read by whole tiles, and these may be larger than the image
                _check_size(data, jpeg.Frame(image.tag_v2.get(323, 1), image.tag_v2.get(322, 1), 0, False), max_pixels)
            return image
    raise DecodeError("not an image, or not one of a known format" if data else "the file is empty")


def _plain_png(data: bytes) -> bytes:
    """A PNG of 8-bit grey or colour with its pixels and EXIF alone; any other as it is.

    PIL refuses an image for a text or a profile that is broken or large. What else is left out, a colour key and an
    orientation in XMP or behind the pixels, is not looked at in these files, as torchvision did not when it read them.
    """
    if data[24:26] not in (b"\x08\x00", b"\x08\x02"):
        return data
    parts, at, kind, wanted = [_PNG], len(_PNG), b"", {b"IHDR", b"eXIf", b"IDAT"}
    while at + 8 <= len(data) and kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            wanted = {b"IDAT", b"IEND"}
        if kind in wanted:
            parts.append(data[at : at + 12 + length])
        at += 12 + length
    return b"".join(parts)


def _check_size(data: bytes, frame: jpeg.Frame, max_pixels: int) -> None:
    pixels, size = frame.height * frame.width, f"{frame.width} × {frame.height} pixels"
    if pixels < 1:
        raise DecodeError(f"an image of {size}")
    if pixels > max_pixels:
        raise DecodeError(f"{size}, more than the limit of {max_pixels:,} (max_image_pixels)")
    # Each scan goes over all pixels, and takes ten bytes: a file of a megabyte may ask for half an hour.
    if frame.scans and pixels * len(data) > 10 * _MOST_SCANNED:
        content = np.frombuffer(data, dtype=np.uint8)
        scans = np.count_nonzero((content[:-1] == 0xFF) & (content[1:] == 0xDA))
        if pixels * scans > _MOST_SCANNED:
            raise DecodeError(f"a JPEG of {size} in {scans:,} scans, which would take minutes to read")


def _orientation(image: ImageFile) -> int:
    """How the image is to be turned, 1 to 8 in EXIF's words; 1 for upright."""
    try:
        found: int = image.getexif().get(0x0112, 1)
        return found if found in _TURNS else 1
    except Exception:  # garbage instead of EXIF says nothing about the pixels
        return 1


def _to_tensor(image: Image.Image) -> Tensor:
    if image.mode.startswith("I") or image.mode == "F":
        image = _from_wide(np.asarray(image))
    if image.mode == "L" and "transparency" not in image.info:
        return torch.from_numpy(np.array(image)).expand(3, -1, -1).contiguous()
    rows = max(1, _BLOCK // image.width)
    if rows >= image.height:
        return torch.from_numpy(np.array(to_rgb(image))).permute(2, 0, 1)
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top in range(0, image.height, rows):
        block = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + rows] = np.asarray(to_rgb(block))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def to_rgb(image: Image.Image) -> Image.Image:
    """A PIL image of 8 bits a channel or fewer as RGB."""
    if image.mode == "RGB":
        return image
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _from_wide(values: Any) -> Image.Image:
    """Grey values of 16 or 32 bits, or floats, as 8-bit grey, by the range of their type and never by their own."""
    if values.dtype.kind == "f":
        top = 1.0 if np.fmax.reduce(values, axis=None) <= 1 else 255.0
    else:
        top = 255.0 if values.dtype.itemsize > 2 and values.max(initial=0) <= 255 else 65535.0
    grey = np.empty(values.shape, dtype=np.uint8)
    rows = max(1, _BLOCK // values.shape[1])
    with np.errstate(all="ignore"):  # floats may be nan or infinite
        for start in range(0, len(values), rows):
            scaled = np.clip(values[start : start + rows] / top * 255, 0, 255)
            grey[start : start + rows] = np.nan_to_num(scaled).round()
    return Image.fromarray(grey)
