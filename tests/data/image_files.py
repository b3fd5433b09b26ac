"""Image files of every supported kind, made by code; the format is in the name."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

_HEIGHT = 23
_WIDTH = 31
#: The passes of an interlaced PNG: first column and row, steps between columns and rows.
_ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
#: Colour types of PNG (0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA) and their bits a channel.
PNG_KINDS = [(colour, depth) for colour, depths in _DEPTHS.items() for depth in depths]


def chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG."""
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(
    values: Any,
    colour: int,
    depth: int,
    *,
    interlaced: bool = False,
    before: bytes = b"",
    after: bytes = b"",
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
    parts = (
        chunk(b"IHDR", header),
        before,
        chunk(b"IDAT", zlib.compress(rows)),
        after,
        chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _packed(line: Any, depth: int) -> bytes:
    """A row [W, C] as bytes, numbers of less than 8 bits several in one, the first in the highest bits."""
    if depth >= 8:
        return bytes(line.astype(">u2" if depth == 16 else np.uint8).tobytes())
    return np.packbits(
        ((line.reshape(-1, 1) >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8)
    ).tobytes()


def png_values(colour: int, depth: int, height: int = _HEIGHT, width: int = _WIDTH) -> Any:
    """Numbers [H, W, C] of the whole range, the same in every call."""
    return np.random.default_rng([colour, depth]).integers(
        0, 2**depth, (height, width, _CHANNELS[colour])
    )


def palette(depth: int) -> Any:
    """Colours [2 ** depth, 3] for `chunk(b"PLTE", …)`."""
    return np.random.default_rng(depth).integers(0, 256, (2**depth, 3), dtype=np.uint8)


def photograph(height: int = _HEIGHT, width: int = _WIDTH) -> Image.Image:
    """Return smooth colours and some noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).integers(0, 40, (height, width))
    return Image.fromarray(
        np.stack((215 * y / height + noise, 255 * x / width, 255 - 5 * noise), 2).astype(np.uint8)
    )


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def bitmap(value: int = 0) -> bytes:
    """Return a small picture in a format that no decoder plugin makes faster."""
    return saved(Image.new("RGB", (4, 3), (value, value, value)), "BMP")


def exif(orientation: int = 6) -> Image.Exif:
    """EXIF with an orientation and some words."""
    found = Image.Exif()
    found[0x0112], found[0x010E] = orientation, "taken from a window"
    return found


def bmp_in_runs(body: bytes, width: int = _WIDTH, height: int = _HEIGHT) -> bytes:
    """Return a BMP of 256 levels in run-length encoding, which PIL reads but does not write."""
    greys = b"".join(bytes((level, level, level, 0)) for level in range(256))
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 0, 0, 256, 0)
    return (
        b"BM" + struct.pack("<IHHI", 54 + 1024 + len(body), 0, 0, 54 + 1024) + header + greys + body
    )


#: What PIL writes of each format: mode, and options. The first word of a name is the format.
_FRAMES = {"save_all": True, "append_images": [photograph().rotate(90), photograph().rotate(180)]}
_SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "PNG with text": ("RGB", {"exif": exif(), "icc_profile": b"profile" * 20, "dpi": (72, 72)}),
    "JPEG baseline": ("RGB", {}),
    "JPEG progressive": ("RGB", {"progressive": True}),
    "JPEG with EXIF": ("RGB", {"exif": exif()}),
    "JPEG with restarts": ("RGB", {"restart_marker_blocks": 2, "subsampling": 0}),
    "JPEG CMYK, progressive": ("CMYK", {"progressive": True}),
    "GIF interlaced": ("P", {"interlace": True, "transparency": 3}),
    "TIFF turned": ("RGB", {"tiffinfo": {0x0112: 6}}),
    "WEBP lossy": ("RGB", {}),
    "WEBP lossless": ("RGB", {"lossless": True}),
    "WEBP with EXIF": ("RGBA", {"exif": exif()}),
    "JP2 codestream": ("RGB", {"no_jp2": True, "irreversible": True, "tile_size": (16, 16)}),
    **{f"{kind} of frames": ("RGB", _FRAMES) for kind in ("PNG", "GIF", "TIFF", "WEBP")},
    **{f"TIFF 1, {one}": ("1", {"compression": one}) for one in ("group3", "group4")},
    **{
        f"TIFF {mode}, {one}": (mode, {"compression": one})
        for one, mode in itertools.product(
            ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"), ("RGB", "L")
        )
    },
}
_MODES = {
    "JPEG": ("L", "CMYK"),
    "PPM": ("1", "L", "RGB"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "GIF": ("1", "L", "P"),
    "TIFF": ("RGB", "1", "LA", "P", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F", "I;16"),
    "JP2": ("L", "LA", "RGB", "RGBA", "I;16"),
}


@functools.cache
def every_format() -> dict[str, bytes]:
    """Files by name; the first word of the name is the format."""
    return dict(_files())


def _files() -> Iterator[tuple[str, bytes]]:
    for colour, depth in PNG_KINDS:
        colours = chunk(b"PLTE", palette(depth).tobytes()) if colour == 3 else b""
        yield (
            f"PNG of type {colour}, {depth} bits",
            png(png_values(colour, depth), colour, depth, before=colours),
        )
    yield "PNG interlaced", png(png_values(6, 8), 6, 8, interlaced=True)
    modes = {
        f"{kind} {mode}": (mode, dict[str, Any]())
        for kind, modes in _MODES.items()
        for mode in modes
    }
    for name, (mode, options) in (modes | _SAVED).items():
        kind = name.split()[0]
        # PIL leaves notes in the frames that it saves
        yield (
            name,
            saved(_of_mode(mode), "JPEG2000" if kind == "JP2" else kind, **copy.deepcopy(options)),
        )
    yield "JPEG of several pictures", saved(photograph(), "MPO", **copy.deepcopy(_FRAMES))
    yield "JPEG large", saved(photograph(200, 300), "JPEG")
    words = " ".join(map(str, np.asarray(photograph()).reshape(-1))).encode()
    yield "PPM in words", b"P3\n# by hand\n%d %d 255\n" % (_WIDTH, _HEIGHT) + words
    yield (
        "PPM 16 bits",
        b"P5 %d %d 65535\n" % (_WIDTH, _HEIGHT)
        + np.asarray(_of_mode("I;16")).astype(">u2").tobytes(),
    )
    yield "BMP in runs", bmp_in_runs(b"\x1f\x80\0\0" * 21 + b"\0\4\1\2\3\4\0\2\1\1\x1a\x09\0\1")


def _of_mode(mode: str) -> Image.Image:
    picture = photograph()
    if mode == "I;16":
        return Image.fromarray(
            np.random.default_rng(1).integers(0, 2**16, (_HEIGHT, _WIDTH), dtype=np.uint16)
        )
    if mode == "F":
        return Image.fromarray(np.asarray(picture.convert("L"), dtype=np.float32) / 255)
    if mode in ("I", "LAB"):
        return (
            picture.convert("L").convert("I")
            if mode == "I"
            else Image.merge("LAB", picture.split())
        )
    made = picture.convert(mode)
    if mode in ("LA", "RGBA"):
        made.putalpha(picture.convert("L"))
    return made
