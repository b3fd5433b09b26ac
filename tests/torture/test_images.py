"""Damaged and hostile image files: refused in one line or decoded, in bounded time and memory, never a dead process."""

from __future__ import annotations

import io
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from PIL import Image

from hexa.data.sources.decode import MAX_IMAGE_PIXELS, DecodeError, decode, largest, quiet
from hexa.data.sources.pil import jpeg_size
from tests.data.image_files import (
    bmp_in_runs,
    chunk,
    every_format,
    photograph,
    png,
    png_values,
    saved,
)
from tests.torture.harness import DAMAGES, Tally, forked

#: What a file may take: seconds of a processor and MB, for itself, for each million pixels that its header declares
#: (up to the limit on pixels), and for each MB of it.
_SECONDS = 30.0
_SECONDS_PER_MEGAPIXEL = 2.0
_SECONDS_PER_MB = 20.0
_MB = 300.0
_MB_PER_MEGAPIXEL = 40.0
_MB_PER_MB = 8.0
FILES = every_format()
#: (what is wrong, megapixels that are declared, seconds, MB of the file)
Decoded = tuple[str | None, float, float, float]


def read(data: bytes) -> None:
    """Read images as evaluations do, with and without a value of white, and cut training crops of large ones."""
    largest(data)
    if jpeg_size(data) is not None:
        decode(data, shrink=4)
    with suppress(DecodeError):  # as below
        decode(data, max_value=65535)
    decode(data)


def _decoded(data: bytes, reader: Callable[[bytes], object]) -> Decoded:
    begin = time.process_time()
    wrong = None
    declared = 0
    try:
        reader(data)
    except DecodeError as error:
        message = str(error)
        wrong = (
            None
            if message and "\n" not in message and " at 0x" not in message
            else f"says {message!r}"
        )
    except BaseException as error:
        wrong = f"raises {error!r}"
    try:
        with Image.open(io.BytesIO(data)) as image:
            declared = min(image.width * image.height, MAX_IMAGE_PIXELS)
    except Exception:
        pass  # no header
    return wrong, declared / 1e6, time.process_time() - begin, len(data) / 1e6


def complaints(files: Sequence[bytes], reader: Callable[[bytes], object] = read) -> list[str]:
    """Return the problems of files that a child decodes."""

    def work() -> list[Decoded]:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [_decoded(data, reader) for data in files]

    found = forked(work, seconds=300)
    if found.signal is not None or found.raised is not None:
        return [f"the child died of signal {found.signal}, {found.raised!r}"]
    wrong = []
    most = 0.0
    for said, megapixels, seconds, size in found.value:
        most = max(most, _MB + _MB_PER_MEGAPIXEL * megapixels + _MB_PER_MB * size)
        late = seconds > _SECONDS + _SECONDS_PER_MEGAPIXEL * megapixels + _SECONDS_PER_MB * size
        wrong += [said or f"takes {seconds:.0f} s"] if said or late else []
    return wrong + ([f"takes {found.megabytes:.0f} MB"] if found.megabytes > most else [])


def _without_pixels(data: bytes) -> bytes:
    """A PNG with a valid stream of fewer bytes than its pixels need; other files unchanged."""
    if not data.startswith(b"\x89PNG"):
        return data
    return data[:33] + chunk(b"IDAT", zlib.compress(bytes(200))) + chunk(b"IEND", b"")


def test_damaged_images(tally: Tally) -> None:
    """Damaged files are read or refused."""
    for kind, damage in {**DAMAGES, "without pixels": _without_pixels}.items():
        found = complaints([damage(data) for data in FILES.values()])
        tally.input("damaged image files", not found, (kind, found))


# -- small files that ask for much ----------------------------------------------------------------------------------

_SMALL = photograph(16, 16)
_JPEG, _WEBP, _BMP, _JP2 = (saved(_SMALL, kind) for kind in ("JPEG", "WEBP", "BMP", "JPEG2000"))
_FRAMES = {"save_all": True, "append_images": [_SMALL.rotate(angle) for angle in range(300)]}
_TEXT = zlib.compress(bytes(1_000_000), 9)
_SIZ = _JP2.index(b"\xff\x51")


def _patched(data: bytes, at: int | bytes, content: bytes, behind: int = 0) -> bytes:
    place = (at if isinstance(at, int) else data.index(at)) + behind
    return data[:place] + content + data[place + len(content) :]


def _png(width: int, height: int, pixels: bytes = bytes(1000)) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(pixels, 9))
        + chunk(b"IEND", b"")
    )


def _beside(content: bytes) -> bytes:
    return png(png_values(2, 8, 16, 16), 2, 8, before=content)


def _tiff(
    tags: Mapping[int, int], counts: Mapping[int, int] = {}, after: int = 0, rest: bytes = b""
) -> bytes:
    """A deflated grey TIFF with these tags, a number each; counts: how many numbers a tag claims to have."""
    numbers = {258: 8, 259: 8, 262: 1, 277: 1} | dict(tags)
    entries = (
        struct.pack("<HHII", tag, 4, counts.get(tag, 1), numbers[tag]) for tag in sorted(numbers)
    )
    head = (
        b"II*\0"
        + struct.pack("<IH", 8, len(numbers))
        + b"".join(entries)
        + struct.pack("<I", after)
    )
    return head + (rest or zlib.compress(bytes(1000)))


_GIF = struct.pack("<HHB", 65535, 65535, 0) + b"\x08\x04\x00\x01\x04\x05\0;"
_TILED = {256: 9000, 257: 9000, 259: 1, 322: 1, 323: 1, 324: 146, 325: 146}
_SCANNED = _patched(
    saved(Image.new("L", (16, 16), 90), "JPEG", progressive=True),
    b"\xff\xc2",
    b"\x23\x28\x23\x28",
    5,
)

TOO_LARGE = {
    "PNG": _png(16384, 16384),
    "JPEG": _patched(_JPEG, b"\xff\xc0", struct.pack(">HH", 65500, 65500), 5),
    "GIF": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",\0\0\0\0" + _GIF,
    "WEBP": _patched(_WEBP, 26, struct.pack("<HH", 16383, 16383)),
    "BMP": _patched(_BMP, 18, struct.pack("<ii", 20000, -20000)),
    "PPM": b"P6 20000 20000 255\n" + bytes(100),
    "TIFF": _tiff({256: 20000, 257: 20000, 273: 8, 279: 100}),
    "TIFF with a large tile": _tiff({256: 16, 257: 16, 322: 46000, 323: 46000, 324: 8, 325: 100}),
    "JP2": _patched(_JP2, b"ihdr", struct.pack(">II", 20000, 20000), 4),
}
UNFOLDING = {
    **{
        f"{kind} of 300 frames": saved(_SMALL, kind, **_FRAMES)
        for kind in ("PNG", "GIF", "WEBP", "TIFF")
    },
    "PNG and texts": _beside(
        b"".join(chunk(b"zTXt", b"key %d\0\0" % number + _TEXT) for number in range(60))
    ),
    "PNG and too many pixels": _png(16, 16, bytes(100_000_000)),
    "JPEG of 30,000 scans": _SCANNED[:-2]
    + b"\xff\xda\0\x08\x01\x01\0\x01\x3f\0\0" * 30_000
    + b"\xff\xd9",
    "BMP of long runs": bmp_in_runs(b"\0\2\0\xff" * 4 + b"\1\1\0\0", 5_000_000, 1),
    "TIFF in 50,000 tiles": _tiff(_TILED, {324: 50_000, 325: 50_000}, rest=b"\1\0\0\0" * 50_000),
    "TIFF with a tag of gigabytes": _tiff(
        {256: 16, 257: 16, 273: 8, 278: 16, 279: 256}, {273: 2**31}
    ),
    "JP2 in tiles of one pixel": _patched(_JP2, _SIZ, struct.pack(">II", 1, 1), 22),
}


def test_oversized_image_headers(tally: Tally) -> None:
    """Images that are too large are refused by their header."""
    for name, data in TOO_LARGE.items():
        found = forked(lambda: decode(data))  # noqa: B023
        refused = (
            isinstance(found.raised, DecodeError)
            and "limit of" in str(found.raised)
            and found.megabytes < 200
        )
        tally.input("image files that declare gigabytes", refused, (name, found))


def test_unfolding_images(tally: Tally) -> None:
    """Images that decompress to large sizes take little time and memory."""
    for name, data in UNFOLDING.items():
        tally.input(
            "image files that unfold in memory or time",
            not (found := complaints([data])),
            (name, found),
        )
