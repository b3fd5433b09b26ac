"""Opens image files with PIL, in formats from a closed list, their headers checked before anything is decoded."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

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

from hexa.config import UserError
from hexa.data.sources import kinds
from hexa.data.sources.limits import DecodeError, check_jpeg, check_size, check_tiff

_PNG = b"\x89PNG\r\n\x1a\n"
#: Bit depth and colour type of PNGs in 8-bit grey and RGB.
_PLAIN_PNG = (b"\x08\x00", b"\x08\x02")
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


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of decoders (odd metadata, large images, deprecations) in the whole process.

    Changing the filters costs time, so use it around passes over many images, not around a single one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(PIL|torchvision\.io)\b")
        yield


def opened(data: bytes, max_pixels: int) -> ImageFile:
    """The image with only its header read (JPEG XL: decoded, its size checked before)."""
    kind = kinds.kind_of(data)
    if kind is None:
        raise DecodeError("not an image in a known format" if data else "the file is empty")
    reader = _reader(kind)
    header = None
    if kind == "JPEG XL":
        from hexa.data.sources import jpeg_xl

        header = jpeg_xl.header_of(data)
        check_size(header.height, header.width, max_pixels)
    try:
        image: ImageFile = reader(io.BytesIO(_plain_png(data) if kind == "PNG" else data))
    except SyntaxError as error:  # what PIL raises for headers it cannot parse
        said = " ".join(str(error).split()) if error.__cause__ is None else "its header is broken"
        if said == "unknown pixel mode":
            said = "pixels of this type are not supported; save it with 8 or 16 bits, or as .npy"
        raise DecodeError(f"cannot be read as {kind}: {said}") from None
    except RuntimeError:  # the plugin for JPEG XL, which speaks of how it was built
        raise DecodeError(f"cannot be read as {kind}: the file is damaged") from None
    if header is not None and header.turned and not getattr(image, "jpeg", False):
        image.info.pop("exif", None)  # it is turned already; a JPEG packed into JPEG XL is not
    if isinstance(image, JpegImageFile):
        check_jpeg(data, image, max_pixels)
    check_size(image.height, image.width, max_pixels)
    if isinstance(image, TiffImageFile):
        check_tiff(image, max_pixels)
    return image


def upright(data: bytes, max_pixels: int, shrink: int = 1) -> Image.Image:
    """The decoded image, turned upright; a JPEG at 1/shrink of its size. Raises whatever PIL raises."""
    image = opened(data, max_pixels)
    if shrink > 1:
        image.draft("RGB", (image.width // shrink, image.height // shrink))
    image.load()
    turn(image)
    return image


def turn(image: Image.Image, like: Image.Image | None = None) -> None:
    """Turn an image upright by its own EXIF, or by that of another image."""
    with suppress(Exception):  # damaged EXIF says nothing about the pixels
        if like is not None:
            image.getexif()[_ORIENTATION] = like.getexif()[_ORIENTATION]
        ImageOps.exif_transpose(image, in_place=True)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(H, W) of a JPEG once upright, from its header alone; None for other files and broken headers."""
    if kinds.kind_of(data) == "JPEG":
        with suppress(Exception):  # as in `decode`
            image = JpegImageFile(io.BytesIO(data))
            with suppress(Exception):  # damaged EXIF says nothing about the pixels
                if image.getexif().get(_ORIENTATION) in _ON_SIDE:
                    return image.width, image.height
            return image.height, image.width
    return None


def _reader(kind: str) -> Any:
    """The class of PIL, or of its plugins, that reads this kind of file."""
    if kind in _READERS:
        return _READERS[kind]
    if kind not in kinds.EXTRAS:
        raise DecodeError(f"{kind} files are not read here")
    from hexa.runtime.packages import import_extra

    extra, module = kinds.EXTRAS[kind]
    try:
        plugin: Any = import_extra(module, extra, kind)
    except UserError as error:
        raise DecodeError(str(error)) from None
    return plugin.HeifImageFile if kind == "HEIC" else plugin.JpegXLImagePlugin.JXLImageFile


def _plain_png(data: bytes) -> bytes:
    """An 8-bit grey or colour PNG reduced to pixels and EXIF; any other PNG unchanged.

    PIL refuses images whose text or colour profile is broken or large. A colour key, and an orientation in XMP or
    after the pixels, are dropped as well: torchvision ignored them when it read these files.
    """
    if data[24:26] not in _PLAIN_PNG:
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
