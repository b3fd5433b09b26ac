"""Image files of every kind that can be read, made by code: what they show is in the name, not in the pixels."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

_HEIGHT, _WIDTH = 23, 31
#: The passes of an interlaced PNG: first column and row, steps between columns and rows.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
#: Colour types of PNG (0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA) and their bits a channel.
PNG_KINDS = [
    *((0, depth) for depth in (1, 2, 4, 8, 16)),
    *((2, depth) for depth in (8, 16)),
    *((3, depth) for depth in (1, 2, 4, 8)),
    *((colour, depth) for colour in (4, 6) for depth in (8, 16)),
]


def chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(
    values: Any, colour: int, depth: int, *, interlaced: bool = False, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG of unsigned numbers [H, W, C] of `depth` bits; chunks to stand before and after the pixels."""
    height, width, _ = values.shape
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    rows = b"".join(
        b"\0" + _packed(line, depth)
        for left, top, across, down in passes
        for line in values[top::down, left::across]
        if line.size
    )
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    parts = (chunk(b"IHDR", header), before, chunk(b"IDAT", zlib.compress(rows)), after, chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _packed(line: Any, depth: int) -> bytes:
    """A row [W, C] as bytes, numbers of less than 8 bits several in one, the first in the highest bits."""
    if depth >= 8:
        return bytes(line.astype(">u2" if depth == 16 else np.uint8).tobytes())
    bits = (line.reshape(-1, 1) >> np.arange(depth - 1, -1, -1)) & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def png_values(colour: int, depth: int, height: int = _HEIGHT, width: int = _WIDTH) -> Any:
    """Numbers [H, W, C] of the whole range, the same in every call."""
    generator = np.random.default_rng([colour, depth])
    return generator.integers(0, 2**depth, (height, width, _CHANNELS[colour]))


def palette(depth: int) -> Any:
    """Colours [2 ** depth, 3] for `chunk(b"PLTE", …)`."""
    return np.random.default_rng(depth).integers(0, 256, (2**depth, 3), dtype=np.uint8)


def photograph(height: int = _HEIGHT, width: int = _WIDTH) -> Image.Image:
    """Smooth colours and some noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).integers(0, 40, (height, width))
    return Image.fromarray(np.stack((215 * y / height + noise, 255 * x / width, 255 - 5 * noise), 2).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def exif(orientation: int = 6) -> Image.Exif:
    """EXIF with an orientation and some words."""
    found = Image.Exif()
    found[0x0112], found[0x010E] = orientation, "taken from a window"
    return found


def bmp_in_runs(body: bytes, width: int = _WIDTH, height: int = _HEIGHT) -> bytes:
    """A BMP of 256 grey levels in run-length encoding, which PIL reads and does not write."""
    greys = b"".join(bytes((level, level, level, 0)) for level in range(256))
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 1024 + len(body), 0, 0, 54 + 1024) + header + greys + body


def every_format() -> dict[str, bytes]:
    """Files by name; the first word of the name is the format."""
    return dict(_files())


def _files() -> Iterator[tuple[str, bytes]]:
    for colour, depth in PNG_KINDS:
        colours = chunk(b"PLTE", palette(depth).tobytes()) if colour == 3 else b""
        for interlaced in (False, True):
            name = f"PNG of type {colour}, {depth} bits{', interlaced' if interlaced else ''}"
            yield name, png(png_values(colour, depth), colour, depth, interlaced=interlaced, before=colours)
    picture = photograph()
    frames = [picture.rotate(angle) for angle in (90, 180)]
    yield "PNG with text", saved(picture, "PNG", exif=exif(), icc_profile=b"profile" * 20, dpi=(72, 72))
    yield "PNG animated", saved(picture, "PNG", save_all=True, append_images=frames)
    yield from _jpegs(picture)
    yield from _simple(picture)
    yield from _tiffs(picture, frames)
    options: dict[str, dict[str, Any]] = {
        "lossy": {},
        "lossless": {"lossless": True},
        "with EXIF": {"exif": exif()},
        "animated": {"save_all": True, "append_images": frames},
    }
    for name, option in options.items():
        yield f"WEBP {name}", saved(picture, "WEBP", **option)
    for mode in ("L", "LA", "RGB", "RGBA"):
        yield f"JP2 {mode}", saved(_with_alpha(picture, mode), "JPEG2000")
    yield "WEBP with alpha", saved(_with_alpha(picture, "RGBA"), "WEBP")
    yield "JP2 16 bits", saved(_sixteen_bits(), "JPEG2000")
    yield "JP2 codestream", saved(picture, "JPEG2000", no_jp2=True, irreversible=True)
    yield "JP2 in tiles", saved(picture, "JPEG2000", tile_size=(16, 16))


def bands_of(channels: int) -> dict[str, bytes]:
    """Arrays of every type, and TIFF of every layout where tifffile is installed."""
    found, shape = {}, (_HEIGHT, _WIDTH, channels)
    for dtype in ("u1", "<u2", ">u2", "<f4", "<f8"):
        values = (np.arange(math.prod(shape)).reshape(shape) % 200 / (200 if "f" in dtype else 1)).astype(dtype)
        for order in ("C", "F"):
            file = io.BytesIO()
            np.save(file, np.asarray(values, order=order))  # type: ignore[call-overload]
            found[f"NPY {dtype} {order}"] = file.getvalue()
    if channels not in (1, 3) and importlib.util.find_spec("tifffile"):  # others are PIL's
        import tifffile

        for dtype, (name, options) in itertools.product(("u1", "u2", "f4"), _LAYOUTS.items()):
            values = (np.arange(math.prod(shape)).reshape(shape) % 200 / (200 if "f" in dtype else 1)).astype(dtype)
            apart = name in ("separate", "pages")
            file = io.BytesIO()
            tifffile.imwrite(file, values.transpose(2, 0, 1) if apart else values, photometric="minisblack", **options)
            found[f"TIFF {dtype} {name}"] = file.getvalue()
    return found


_LAYOUTS: dict[str, dict[str, Any]] = {
    "together": {"planarconfig": "contig"},
    "separate": {"planarconfig": "separate", "compression": "zlib"},
    "pages": {},
    "tiles": {"planarconfig": "contig", "tile": (16, 16), "compression": "zlib"},
    "big": {"planarconfig": "contig", "bigtiff": True, "rowsperstrip": 4},
}


def _jpegs(picture: Image.Image) -> Iterator[tuple[str, bytes]]:
    options: dict[str, dict[str, Any]] = {
        "baseline": {},
        "progressive": {"progressive": True},
        "444": {"subsampling": 0},
        "with EXIF": {"exif": exif()},
        "with restarts": {"restart_marker_blocks": 2},
    }
    for name, option in options.items():
        yield f"JPEG {name}", saved(picture, "JPEG", **option)
    for mode in ("L", "CMYK"):
        yield f"JPEG {mode}", saved(picture.convert(mode), "JPEG")
        yield f"JPEG {mode}, progressive", saved(picture.convert(mode), "JPEG", progressive=True)
    yield "JPEG of several pictures", saved(picture, "MPO", save_all=True, append_images=[picture.rotate(180)])
    yield "JPEG large", saved(photograph(200, 300), "JPEG")


def _simple(picture: Image.Image) -> Iterator[tuple[str, bytes]]:
    """Portable maps, BMPs and GIFs."""
    for mode in ("1", "L", "RGB"):
        yield f"PPM {mode}", saved(picture.convert(mode), "PPM")
    sixteen = np.asarray(_sixteen_bits())
    yield "PPM 16 bits", b"P5 %d %d 65535\n" % sixteen.shape[::-1] + sixteen.astype(">u2").tobytes()
    words = " ".join(map(str, np.asarray(picture).reshape(-1))).encode()
    yield "PPM in words", b"P3\n# by hand\n%d %d 255\n" % picture.size + words
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        yield f"BMP {mode}", saved(_with_alpha(picture, mode), "BMP")
    yield "BMP in runs", bmp_in_runs(b"\x1f\x80\0\0" * 21 + b"\0\4\1\2\3\4\0\2\1\1\x1a\x09\0\1")
    for mode in ("1", "L", "P"):
        yield f"GIF {mode}", saved(picture.convert(mode), "GIF")
    yield "GIF interlaced", saved(picture.convert("P"), "GIF", interlace=True, transparency=3)
    frames = [picture.rotate(angle).convert("P") for angle in (90, 180)]
    yield "GIF animated", saved(picture.convert("P"), "GIF", save_all=True, append_images=frames, disposal=2)


def _tiffs(picture: Image.Image, frames: list[Image.Image]) -> Iterator[tuple[str, bytes]]:
    compressions = (None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
    for compression in compressions:
        yield f"TIFF RGB, {compression}", saved(picture, "TIFF", compression=compression)
        yield f"TIFF L, {compression}", saved(picture.convert("L"), "TIFF", compression=compression)
    for compression in ("group3", "group4"):
        yield f"TIFF 1, {compression}", saved(picture.convert("1"), "TIFF", compression=compression)
    for mode in ("1", "LA", "P", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F"):
        yield f"TIFF {mode}", saved(_with_alpha(picture, mode), "TIFF")
        if mode not in ("1", "YCbCr", "LAB"):
            yield f"TIFF {mode}, deflated", saved(_with_alpha(picture, mode), "TIFF", compression="tiff_deflate")
    yield "TIFF 16 bits", saved(_sixteen_bits(), "TIFF")
    yield "TIFF with several frames", saved(picture, "TIFF", save_all=True, append_images=frames)
    yield "TIFF turned", saved(picture, "TIFF", tiffinfo={0x0112: 6})


def _with_alpha(picture: Image.Image, mode: str) -> Image.Image:
    if mode == "F":
        return Image.fromarray(np.asarray(picture.convert("L"), dtype=np.float32) / 255)
    if mode in ("I", "LAB"):
        return picture.convert("L").convert("I") if mode == "I" else Image.merge("LAB", picture.split())
    made = picture.convert(mode)
    if mode in ("LA", "RGBA"):
        made.putalpha(picture.convert("L"))
    return made


def _sixteen_bits() -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 2**16, (_HEIGHT, _WIDTH), dtype=np.uint16))
