"""Decodes the bytes of an image file to upright uint8 RGB, whatever its colours, depth or orientation."""

from __future__ import annotations

import io
import os
import stat
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from PIL.AvifImagePlugin import AvifImageFile
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

from hexa.config import UserError
from hexa.data.sources import jpeg_xl, kinds
from hexa.runtime.packages import import_extra

try:  # torchvision 0.29 announces their removal; PIL then decodes everything, up to three times slower
    from torchvision.io import ImageReadMode, decode_image
except ImportError:
    decode_image = None

#: Suffixes that are taken at their word: such a file is an image, or a broken one. All other files are looked into.
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2")
)
#: Texts that stand beside images, and are not opened either.
_SIDECARS = frozenset((".txt", ".xml", ".json", ".csv", ".cls"))
#: What follows the last point of a name is a suffix up to this length.
_LONGEST_SUFFIX = 16
#: Images with more pixels are refused by their header, without decoding them. PIL warns of "decompression bombs" (a few
#: kilobytes that unfold to gigabytes) from this number on, but refuses only images twice as large.
MAX_IMAGE_PIXELS = 89_478_485

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
#: Which class reads which kind of file. The list is closed: PIL knows forty more formats, few of them tested against
#: hostile files, and one (EPS) is a program that it hands to Ghostscript. See also `_reader`.
_READERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "BMP": BmpImageFile,
    "GIF": GifImageFile,
    "TIFF": TiffImageFile,
    "WebP": WebPImageFile,
    "JPEG 2000": Jpeg2KImageFile,
    "PPM": PpmImageFile,
    "AVIF": AvifImageFile,
}
_ORIENTATION = ExifTags.Base.Orientation
#: The EXIF orientations of images that lie on their side.
_ON_SIDE = (5, 6, 7, 8)
#: Most pixels times scans of a JPEG, some seconds of work; usual files have at most ten scans.
_MOST_SCANNED = 10**10
#: Pixels converted to RGB at a time, so that intermediate results stay in the cache and small beside a large image.
_BLOCK = 2**16


class DecodeError(Exception):
    """An image that cannot be read; the message is one line."""


#: Larger files, in bytes, are refused; photographs are a thousand times smaller.
MOST_BYTES = 1 << 30


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of decoders (odd metadata, large images, deprecations) in the whole process.

    Changing the filters costs time, so use it around passes over many images, not around a single one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(PIL|torchvision\.io)\b")
        yield


def read(path: str | Path, first: int = -1) -> bytes:
    """The bytes of a file, or only the `first` ones. Raises DecodeError for anything that cannot be read."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise DecodeError("not a regular file")
        if first < 0 and status.st_size > MOST_BYTES:
            raise DecodeError(too_large(status.st_size))
        with open(path, "rb") as file:
            return file.read(first)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise DecodeError(getattr(error, "strerror", None) or str(error)) from None


def beginning(path: str, count: int) -> bytes:
    """The first bytes of a regular file, at most `count`, four times as fast as `read`. Raises DecodeError."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            return os.read(number, count)
        finally:
            os.close(number)
    except OSError as error:
        raise DecodeError(error.strerror or str(error)) from None


def why_left_out(name: str, read_first: Callable[[int], bytes]) -> str | None:
    """None if a file is an image; otherwise what it is counted as, such as its suffix, perhaps with a remedy.

    The content decides, unless the suffix is one of `EXTENSIONS` or that of a text beside an image: to open a million
    files would take minutes.
    read_first: returns as many bytes of the file's beginning as it is told to; may raise DecodeError.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix in EXTENSIONS:
        return None
    if suffix in _SIDECARS:
        return suffix
    if not 1 < len(suffix) <= _LONGEST_SUFFIX:
        suffix = ""
    try:
        kind = kinds.kind_of(read_first(kinds.HEAD))
    except DecodeError:
        return "unreadable"
    if kind is None or (kind == "TIFF" and suffix in kinds.RAW):
        return suffix or "without suffix"
    command = kinds.missing_extra(kind)
    return None if command is None else f"{suffix or kind} ({command})"


def too_large(size: int) -> str:
    return f"the file has {size:,} bytes; an image may have at most {MOST_BYTES:,}"


def decode(data: bytes, max_pixels: int = MAX_IMAGE_PIXELS) -> Tensor:
    """The image as uint8 [3, H, W] in RGB. Raises DecodeError for any other bytes and for more than `max_pixels`.

    Grey is repeated over the channels, palettes are looked up, CMYK is converted, 16 bits are scaled to 8,
    transparent pixels are laid over white, the EXIF orientation is applied, and of several frames the first is read.
    JPEGs in colour or grey take a path 1.5 to 3 times as fast as PIL, with the same pixels.
    """
    if decode_image is not None and _is_plain_jpeg(data, max_pixels):
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with suppress(Exception):  # PIL says better what is wrong
            image: Tensor = decode_image(
                raw, mode=ImageReadMode.UNCHANGED, apply_exif_orientation=True
            )
            return image.expand(3, -1, -1).contiguous() if image.shape[0] == 1 else image
    return decode_with_pil(data, max_pixels=max_pixels)


def _is_plain_jpeg(data: bytes, max_pixels: int) -> bool:
    """True for a JPEG in grey or colour. Raises DecodeError for more than `max_pixels`."""
    if not data.startswith(_JPEG):
        return False
    try:
        image = JpegImageFile(io.BytesIO(data))
    except Exception:  # `decode_with_pil` says what is wrong
        return False
    _check_jpeg(data, image, max_pixels)
    return image.mode in ("L", "RGB")


def decode_with_pil(data: bytes, shrink: int = 1, max_pixels: int = MAX_IMAGE_PIXELS) -> Tensor:
    """`decode` with PIL. A JPEG can be decoded at 1/shrink of its size (2, 4 or 8, sides rounded up), much faster."""
    try:
        return _to_tensor(upright(data, max_pixels, shrink))
    except DecodeError:
        raise
    except Exception as error:
        # PIL's parsers raise whatever goes wrong inside them when a file is damaged, so no list of exception types
        # would ever be complete. Whatever it was, the file is at fault.
        raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from None


def of_levels(data: bytes, values: NDArray[Any], max_pixels: int) -> Tensor:
    """uint8 [3, H, W] of the 16-bit values [H, W] or [H, W, C] of the image in `data`, turned upright as that says."""
    image = Image.fromarray(np.squeeze((values / 257).round().astype(np.uint8)))
    with suppress(Exception):  # damaged EXIF says nothing about the pixels
        image.getexif()[_ORIENTATION] = opened(data, max_pixels).getexif()[_ORIENTATION]
        ImageOps.exif_transpose(image, in_place=True)
    return _to_tensor(image)


def upright(data: bytes, max_pixels: int, shrink: int = 1) -> Image.Image:
    """The image decoded by PIL and turned upright. Raises whatever PIL raises."""
    image = opened(data, max_pixels)
    if shrink > 1:
        image.draft("RGB", (image.width // shrink, image.height // shrink))
    image.load()
    with suppress(Exception):  # damaged EXIF says nothing about the pixels
        ImageOps.exif_transpose(image, in_place=True)
    return image


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(H, W) of a JPEG once upright, from its header alone; None for other files and broken headers."""
    if data.startswith(_JPEG):
        with suppress(Exception):  # see decode_with_pil
            image = JpegImageFile(io.BytesIO(data))
            with suppress(Exception):  # damaged EXIF says nothing about the pixels
                if image.getexif().get(_ORIENTATION) in _ON_SIDE:
                    return image.width, image.height
            return image.height, image.width
    return None


def opened(data: bytes, max_pixels: int) -> ImageFile:
    """The image with only its header read (JPEG XL: decoded, its size checked before)."""
    kind = kinds.kind_of(data)
    if kind is None:
        raise DecodeError("not an image in a known format" if data else "the file is empty")
    reader = _reader(kind)
    header = jpeg_xl.header_of(data) if kind == "JPEG XL" else None
    if header is not None:
        check_size(header.height, header.width, max_pixels)
    elif kind == "JPEG XL":
        raise DecodeError("cannot be read as JPEG XL: its header is broken")
    try:
        image: ImageFile = reader(io.BytesIO(_plain_png(data) if kind == "PNG" else data))
    except SyntaxError as error:  # what PIL raises for headers it cannot parse
        reason = error if error.__cause__ is None else "its header is broken"
        if str(error) == "unknown pixel mode":
            reason = "pixels of this type are not supported; save it with 8 or 16 bits, or as .npy"
        raise DecodeError(f"cannot be read as {kind}: {' '.join(str(reason).split())}") from None
    except RuntimeError:  # the plugin for JPEG XL, which speaks of how it was built
        raise DecodeError(f"cannot be read as {kind}: the file is damaged") from None
    if header is not None and header.turned and not getattr(image, "jpeg", False):
        image.info.pop("exif", None)  # it is turned already; a JPEG packed into JPEG XL is not
    if isinstance(image, JpegImageFile):
        _check_jpeg(data, image, max_pixels)
    check_size(image.height, image.width, max_pixels)
    if isinstance(image, TiffImageFile):
        _check_tiff(image, max_pixels)
    return image


def _reader(kind: str) -> Any:
    """The class of PIL, or of its plugins, that reads this kind of file."""
    if kind in _READERS:
        return _READERS[kind]
    if kind not in kinds.EXTRAS:
        raise DecodeError(f"{kind} files are not read here")
    extra, module = kinds.EXTRAS[kind]
    try:
        plugin: Any = import_extra(module, extra, kind)
    except UserError as error:
        raise DecodeError(str(error)) from None
    return plugin.HeifImageFile if kind == "HEIC" else plugin.JpegXLImagePlugin.JXLImageFile


def _check_tiff(image: TiffImageFile, max_pixels: int) -> None:
    """Raise DecodeError for what PIL reads as something else: missing strips as black, signed numbers as unsigned."""
    tags = image.tag_v2
    check_size(tags.get(323, 1), tags.get(322, 1), max_pixels)  # PIL reads whole tiles
    if image.mode == "L" and 2 in (tags.get(339) or ()):
        raise DecodeError(
            "pixels have type int8; expected uint8, uint16, or floats between 0 and 1"
        )
    if image.tile and image.tile[0][0] == "raw":  # in compressed files libtiff misses them
        planes = tags.get(277, 1) if tags.get(284) == 2 else 1
        parts: list[Any] = [tile[1] for tile in image.tile]
        if (
            sum((right - left) * (low - high) for left, high, right, low in parts)
            < image.width * image.height * planes
        ):
            raise DecodeError("the TIFF is truncated: strips or tiles are missing")


def _plain_png(data: bytes) -> bytes:
    """An 8-bit grey or colour PNG reduced to pixels and EXIF; any other PNG unchanged.

    PIL refuses images whose text or colour profile is broken or large. A colour key, and an orientation in XMP or
    after the pixels, are dropped as well: torchvision ignored them when it read these files.
    """
    if data[24:26] not in (b"\x08\x00", b"\x08\x02"):
        return data
    parts = [_PNG]
    at = len(_PNG)
    kind = b""
    wanted = {b"IHDR", b"eXIf", b"IDAT"}
    while at + 8 <= len(data) and kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            wanted = {b"IDAT", b"IEND"}
        if kind in wanted:
            parts.append(data[at : at + 12 + length])
        at += 12 + length
    return b"".join(parts)


def check_size(height: int, width: int, max_pixels: int) -> str:
    """The size in words. Raises DecodeError for an image without pixels, or with more than `max_pixels`."""
    size = f"{width} × {height} pixels"
    if height * width < 1:
        raise DecodeError(f"the image has {size}")
    if height * width > max_pixels:
        raise DecodeError(f"{size}, more than the limit of {max_pixels:,} (max_image_pixels)")
    return size


def _check_jpeg(data: bytes, image: JpegImageFile, max_pixels: int) -> None:
    """Raise DecodeError for too many pixels, or for scans that would take minutes to decode."""
    size = check_size(image.height, image.width, max_pixels)
    pixels = image.height * image.width
    # A scan takes ten bytes but goes over all pixels: a megabyte can hold half an hour of work.
    if pixels * len(data) > 10 * _MOST_SCANNED:
        content = np.frombuffer(data, dtype=np.uint8)
        scans = np.count_nonzero((content[:-1] == 0xFF) & (content[1:] == 0xDA))
        if pixels * scans > _MOST_SCANNED:
            raise DecodeError(
                f"a JPEG of {size} in {scans:,} scans, which would take minutes to decode"
            )


def _to_tensor(image: Image.Image) -> Tensor:
    if image.mode.startswith("I") or image.mode == "F":
        image = _from_wide(np.asarray(image))
    if image.mode == "L" and "transparency" not in image.info:
        return torch.from_numpy(np.array(image)).expand(3, -1, -1).contiguous()
    rows = max(1, _BLOCK // image.width)
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top in range(0, image.height, rows):
        pixels[top : top + rows] = np.asarray(
            to_rgb(image.crop((0, top, image.width, min(top + rows, image.height))))
        )
    return torch.from_numpy(pixels).permute(2, 0, 1)


def to_rgb(image: Image.Image) -> Image.Image:
    """A PIL image with at most 8 bits per channel, as RGB."""
    if image.mode == "RGB":
        return image
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(
            Image.new("RGBA", layer.size, (255, 255, 255, 255)), layer
        ).convert("RGB")
    return image.convert("RGB")


def in_range(values: NDArray[Any]) -> NDArray[Any]:
    """Grey values as uint16 or float32 in [0, 1]. Raises DecodeError for any that do not fit.

    The scale depends on the type alone, so it is the same for all images of a data set. PIL reads some 16-bit files
    as int32.
    """
    floats = values.dtype.kind == "f"
    if floats or values.dtype == np.int32:
        low = float(values.min())
        high = float(values.max())
        most = 1 if floats else 65535
        if not (low >= 0 and high <= most):  # also true of nan
            kind = "floats" if floats else "32-bit integers"
            raise DecodeError(
                f"{kind} range from {low:g} to {high:g}; they must be between 0 and {most}, "
                "or give SOURCE,max_value=N"
            )
        return values.astype(np.float32 if floats else np.uint16, copy=False)
    return values


def _from_wide(values: Any) -> Image.Image:
    """16-bit, 32-bit or float grey as 8-bit grey."""
    values = in_range(values)
    top = 1.0 if values.dtype.kind == "f" else 65535.0
    grey = np.empty(values.shape, dtype=np.uint8)
    rows = max(1, _BLOCK // values.shape[1])
    for start in range(0, len(values), rows):
        grey[start : start + rows] = (values[start : start + rows] / top * 255).round()
    return Image.fromarray(grey)
