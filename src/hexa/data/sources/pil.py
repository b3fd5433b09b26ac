"""Opens image files of a closed list of formats with PIL, and checks headers before decoding."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
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
from hexa.data.sources.decode import EXTRAS, DecodeError, check_jpeg, check_size, kind_of

_PNG = b"\x89PNG\r\n\x1a\n"
#: Bit depth and colour type of PNGs in 8-bit grey and RGB.
_PLAIN_PNG = (b"\x08\x00", b"\x08\x02")
#: Reader class of each format. The list is closed, because few of the forty other formats of PIL are tested against
#: hostile files, and EPS files are programs for Ghostscript. See also `_reader`.
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
#: TIFF tags.
_SAMPLES_PER_PIXEL = 277
_PHOTOMETRIC = 262
_PLANAR_CONFIGURATION = 284
_TILE_WIDTH = 322
_TILE_LENGTH = 323
_SAMPLE_FORMAT = 339
#: TIFF sample format of signed integers.
_SIGNED = 2
_ORIENTATION = ExifTags.Base.Orientation
#: EXIF orientations with swapped height and width.
_ON_SIDE = (5, 6, 7, 8)


def opened(data: bytes, max_pixels: int) -> ImageFile:
    """Open an image and read its header only; a JPEG XL image is decoded after a check of its size."""
    kind = kind_of(data)
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
    except SyntaxError as error:  # PIL raises SyntaxError for invalid headers
        said = " ".join(str(error).split()) if error.__cause__ is None else "its header is broken"
        if said == "unknown pixel mode":
            said = "pixels of this type are not supported; save it with 8 or 16 bits, or as .npy"
        raise DecodeError(f"cannot be read as {kind}: {said}") from None
    except RuntimeError:  # the message of the JPEG XL plugin describes its own build
        raise DecodeError(f"cannot be read as {kind}: the file is damaged") from None
    if header is not None and header.turned and not getattr(image, "jpeg", False):
        image.info.pop(
            "exif", None
        )  # the decoder has turned the image, unless it is a JPEG packed into JPEG XL
    if isinstance(image, JpegImageFile):
        check_jpeg(data, image, max_pixels)
    check_size(image.height, image.width, max_pixels)
    if isinstance(image, TiffImageFile):
        _check_tiff(image, max_pixels)
    return image


def upright(data: bytes, max_pixels: int, shrink: int = 1) -> Image.Image:
    """Decode an image and turn it upright; a JPEG is decoded at 1/shrink of its size. Raises any error of PIL."""
    image = opened(data, max_pixels)
    if shrink > 1:
        image.draft("RGB", (image.width // shrink, image.height // shrink))
    image.load()
    turn(image)
    return image


def turn(image: Image.Image, like: Image.Image | None = None) -> None:
    """Turn an image upright by its own EXIF orientation, or by the orientation of `like`."""
    with suppress(Exception):  # damaged EXIF says nothing about the pixels
        if like is not None:
            image.getexif()[_ORIENTATION] = like.getexif()[_ORIENTATION]
        ImageOps.exif_transpose(image, in_place=True)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return (H, W) of the upright JPEG, from its header alone; None for other files and broken headers."""
    if kind_of(data) == "JPEG":
        with suppress(Exception):  # as in `decode`
            image = JpegImageFile(io.BytesIO(data))
            with suppress(Exception):  # damaged EXIF says nothing about the pixels
                if image.getexif().get(_ORIENTATION) in _ON_SIDE:
                    return image.width, image.height
            return image.height, image.width
    return None


def _reader(kind: str) -> Any:
    """Return the class of PIL or of a plugin that reads a format."""
    if kind in _READERS:
        return _READERS[kind]
    if kind not in EXTRAS:
        raise DecodeError(f"{kind} files are not supported here; convert the file to PNG or TIFF")
    from hexa.runtime.packages import import_extra

    extra, module = EXTRAS[kind]
    try:
        plugin: Any = import_extra(module, extra, kind)
    except UserError as error:
        raise DecodeError(str(error)) from None
    return plugin.HeifImageFile if kind == "HEIC" else plugin.JpegXLImagePlugin.JXLImageFile


def _plain_png(data: bytes) -> bytes:
    """Reduce an 8-bit grey or colour PNG to pixels and EXIF; return any other PNG unchanged.

    PIL refuses images with a broken or large text or colour profile. A colour key, and an orientation in XMP or after
    the pixels, are dropped as well, because torchvision ignores them.
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


def _check_tiff(image: TiffImageFile, max_pixels: int) -> None:
    """Raise DecodeError for a TIFF that PIL misreads: missing strips become black, signed numbers unsigned."""
    tags = image.tag_v2
    # PIL allocates whole tiles
    check_size(tags.get(_TILE_LENGTH, 1), tags.get(_TILE_WIDTH, 1), max_pixels)
    if image.mode == "L" and _SIGNED in (tags.get(_SAMPLE_FORMAT) or ()):
        raise DecodeError(
            "pixels have type int8; expected uint8, uint16, or floats between 0 and 1"
        )
    if image.mode.startswith("I") and tags.get(_PHOTOMETRIC) == 0:
        raise DecodeError("white is 0 in this TIFF of 16 bits; invert it")
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
