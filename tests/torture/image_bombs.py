"""Small files that ask for much: pixels in gigabytes, texts and profiles that unfold, thousands of frames or scans."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

from PIL import Image

from tests.torture.image_files import bmp_in_runs, chunk, photograph, png, png_values, saved

_SIDE = 16


def too_large() -> dict[str, bytes]:
    """Files of at most some kilobytes whose headers declare more pixels than are read."""
    picture = photograph(_SIDE, _SIDE)
    jpeg, webp, lossless = (saved(picture, "JPEG"), saved(picture, "WEBP"), saved(picture, "WEBP", lossless=True))
    bmp, canvas = saved(picture, "BMP"), saved(picture, "WEBP", save_all=True, append_images=[picture.rotate(90)])
    filled = b"\xff\xd8\xff\xff" + jpeg[2:]  # what PIL alone understands
    frame = struct.pack("<HHB", 65535, 65535, 0) + b"\x08\x04\x00\x01\x04\x05\0;"
    tile = {256: 16, 257: 16, 322: 46000, 323: 46000, 324: 8, 325: 100}
    return {
        "PNG of 256 megapixels": _png_header(16384, 16384, 2),
        "PNG with a palette": _png_header(16384, 16384, 3),
        "PNG with alpha": _png_header(10000, 10000, 6),
        "PNG of 2 ** 62 pixels": _png_header(2**31 - 1, 2**31 - 1, 0),
        "JPEG": _jpeg_of(jpeg, 65500),
        "JPEG with fill bytes": _jpeg_of(filled, 65500),
        "JPEG in CMYK": _jpeg_of(saved(picture.convert("CMYK"), "JPEG"), 65500),
        "JPEG, progressive": _jpeg_of(saved(picture, "JPEG", progressive=True), 9460),
        "GIF": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",\0\0\0\0" + frame,
        "GIF with a large frame": b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b",\0\0\0\0" + frame,
        "WEBP": webp[:26] + struct.pack("<HH", 16383, 16383) + webp[30:],
        "WEBP, lossless": lossless[:21] + struct.pack("<I", 16382 | 16382 << 14) + lossless[25:],
        "WEBP, animated": _patched(canvas, b"VP8X", 12, (9999).to_bytes(3, "little") * 2),
        "BMP": bmp[:18] + struct.pack("<ii", 20000, 20000) + bmp[26:],
        "BMP upside down": bmp[:18] + struct.pack("<ii", 20000, -20000) + bmp[26:],
        "PPM": b"P6 20000 20000 255\n" + bytes(100),
        "PPM in words": b"P3 20000 20000 255\n1 2 3",
        "TIFF": _tiff({256: 20000, 257: 20000, 273: 8, 279: 100}, compression=1),
        "TIFF, deflated": _tiff({256: 20000, 257: 20000, 273: 8, 279: 100}, compression=8),
        "TIFF with a large tile": _tiff(tile, compression=8),
        "JP2": _patched(saved(picture, "JPEG2000"), b"ihdr", 4, struct.pack(">II", 20000, 20000)),
    }


def unfolding() -> dict[str, bytes]:
    """Files that declare few pixels, or as many as are allowed, and much beside them."""
    picture = photograph(_SIDE, _SIDE)
    frames = [picture.rotate(angle) for angle in range(300)]
    animated = {kind: saved(picture, kind, save_all=True, append_images=frames) for kind in ("GIF", "WEBP", "TIFF")}
    jpeg, jp2 = saved(picture, "JPEG"), saved(picture, "JPEG2000")
    text = zlib.compress(bytes(1_000_000), 9)
    texts = b"".join(chunk(b"zTXt", b"key %d\0\0" % number + text) for number in range(60))
    scanned = _jpeg_of(saved(Image.new("L", (_SIDE, _SIDE), 90), "JPEG", progressive=True), 9000)
    scans = scanned[:-2] + b"\xff\xda\0\x08\x01\x01\0\x01\x3f\0\0" * 30_000 + b"\xff\xd9"
    tables = scans.index(b"\xff\xdb")
    siz = jp2.index(b"\xff\x51")
    found = {f"{kind} of 300 frames": data for kind, data in animated.items()}
    found |= {f"{kind} of 300 frames, half": data[: len(data) // 2] for kind, data in animated.items()}
    for name, colour in (("PNG", 2), ("PNG with alpha", 6)):
        values = png_values(colour, 8, _SIDE, _SIDE)
        found |= {
            f"{name} and texts": png(values, colour, 8, before=texts),
            f"{name} and late texts": png(values, colour, 8, after=texts),
            f"{name} and profiles": png(values, colour, 8, before=chunk(b"iCCP", b"icc\0\0" + text) * 100),
            f"{name} and 20,000 words": png(values, colour, 8, before=chunk(b"tEXt", b"key\0word") * 20_000),
            f"{name} and 20,000 empty parts": png(values, colour, 8, before=chunk(b"IDAT", b"") * 20_000),
            f"{name} and too many pixels": _png_header(_SIDE, _SIDE, colour, zlib.compress(bytes(100_000_000), 9)),
        }
    return found | {
        "PNG animated": saved(picture, "PNG", save_all=True, append_images=frames),
        "JPEG with 20,000 pieces of EXIF": jpeg[:2] + b"\xff\xe1\0\x0cExif\0\0abcd" * 20_000 + jpeg[2:],
        "JPEG with EXIF of megabytes": jpeg[:2] + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65527)) * 50 + jpeg[2:],
        "JPEG with a megabyte of nothing": jpeg[:2] + b"\xff\xfe\0\2" + bytes(1_000_000) + jpeg[2:],
        "JPEG of 30,000 scans": scans,
        "JPEG of 30,000 scans behind junk": scans[:tables] + bytes(3) + scans[tables:],
        "BMP of long runs": bmp_in_runs(b"\0\2\0\xff" * 4 + b"\1\1\0\0", 5_000_000, 1),
        "PPM in many words": b"P3 300 300 255\n" + b"1 " * 270_000,
        "PPM of nothing": b"P6 9000 9000 255\n",
        "TIFF in 50,000 tiles": _tiles(50_000),
        "TIFF in tiles of one pixel": _tiff({256: 9000, 257: 9000, 322: 1, 323: 1, 324: 8, 325: 9}, compression=8),
        "TIFF in one large strip": _tiff({256: 16, 257: 16, 273: 8, 278: 2**32 - 1, 279: 100}, compression=8),
        "TIFF of 60,000 tags": b"II*\0" + struct.pack("<IH", 8, 60_000) + struct.pack("<HHII", 256, 4, 1, 16) * 60_000,
        "TIFF with a tag of gigabytes": _tiff({256: 16, 257: 16, 278: 16, 279: 256}, compression=1, offsets=2**31),
        "TIFF whose directory follows itself": _tiff({256: 16, 257: 16, 273: 8, 279: 100}, compression=1, after=8),
        "JP2 of another size inside": jp2[: siz + 6] + struct.pack(">II", 20000, 20000) + jp2[siz + 14 :],
        "JP2 in one large tile": jp2[: siz + 22] + struct.pack(">II", 60000, 60000) + jp2[siz + 30 :],
        "JP2 in tiles of one pixel": jp2[: siz + 22] + struct.pack(">II", 1, 1) + jp2[siz + 30 :],
        "WEBP on a large canvas": _patched(animated["WEBP"], b"VP8X", 12, (2999).to_bytes(3, "little") * 2),
    }


def _png_header(width: int, height: int, colour: int, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    colours = chunk(b"PLTE", bytes(768)) if colour == 3 else b""
    content = chunk(b"IDAT", pixels or zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + colours + content + chunk(b"IEND", b"")


def _jpeg_of(data: bytes, side: int) -> bytes:
    """A JPEG that declares side × side pixels."""
    kind = b"\xff\xc0" if b"\xff\xc0" in data else b"\xff\xc2"
    return _patched(data, kind, 5, struct.pack(">HH", side, side))


def _patched(data: bytes, mark: bytes, behind: int, content: bytes) -> bytes:
    at = data.index(mark) + behind
    return data[:at] + content + data[at + len(content) :]


def _tiff(tags: dict[int, int], compression: int, offsets: int = 0, after: int = 0) -> bytes:
    """A grey TIFF of 8 bits with these tags, a number each. offsets: how many offsets of strips it claims to have."""
    numbers = {258: 8, 259: compression, 262: 1, 277: 1} | tags | ({273: 8} if offsets else {})
    entries = (
        struct.pack("<HHII", tag, 4, offsets if tag == 273 and offsets else 1, number)
        for tag, number in sorted(numbers.items())
    )
    return _directory(entries, len(numbers), after) + zlib.compress(bytes(1000))


def _tiles(count: int) -> bytes:
    """A TIFF of 9000 × 9000 pixels in uncompressed tiles of one pixel, of which there are some."""
    numbers: dict[int, tuple[int, Any]] = {tag: (1, number) for tag, number in ((256, 9000), (257, 9000), (258, 8))}
    numbers |= {tag: (1, number) for tag, number in ((259, 1), (262, 1), (277, 1), (322, 1), (323, 1))}
    end = 8 + 2 + 12 * (len(numbers) + 2) + 4
    numbers |= {324: (count, end), 325: (count, end)}
    entries = (struct.pack("<HHII", tag, 4, *numbers[tag]) for tag in sorted(numbers))
    return _directory(entries, len(numbers), 0) + b"\1\0\0\0" * count


def _directory(entries: Iterable[bytes], count: int, after: int) -> bytes:
    return b"II*\0" + struct.pack("<IH", 8, count) + b"".join(entries) + struct.pack("<I", after)
