"""Decides by the first bytes of a file whether it is an image, and of which kind."""

from __future__ import annotations

import functools
import importlib.util
import re

from hexa.runtime.packages import install_extra

#: Bytes at the beginning of a file that `kind_of` needs.
HEAD = 256

#: How files of each kind begin: as few bytes as tell them from a text that begins alike by chance.
_BEGINNINGS = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "WebP": rb"RIFF....WEBP",
    "BMP": rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0",
    "PPM": rb"P[1-6f]\s+(?:#[^\n]*\n\s*)*-?\d",
    "JPEG 2000": rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n",
    "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n",
    "NPY": rb"\x93NUMPY",
}
_ANY = re.compile(b"|".join(b"(%b)" % one for one in _BEGINNINGS.values()), re.DOTALL)
#: Brands of ISO media files. A file of the brands mif1 and msf1 alone may be of either kind; HEIC is more frequent.
_AVIF = {b"avif", b"avis"}
_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
#: Kinds that need an extra: its name, and the module that reads them.
EXTRAS = {"HEIC": ("heic", "pillow_heif"), "JPEG XL": ("jxl", "pillow_jxl")}
#: All kinds, for messages.
ALL = (*_BEGINNINGS, "AVIF", "HEIC")
#: Camera raw files begin like a TIFF, whose first image is a thumbnail.
RAW = frozenset(
    f".{suffix}"
    for suffix in (
        *("3fr", "arw", "cr2", "dcr", "dng", "erf", "iiq", "kdc"),
        *("mef", "mos", "nef", "nrw", "pef", "sr2", "srf", "srw"),
    )
)


def kind_of(data: bytes) -> str | None:
    """The kind of an image that begins with `data`, such as "JPEG"; None for any other file."""
    found = _ANY.match(data)
    if found is not None:
        return ALL[(found.lastindex or 1) - 1]
    if data[4:8] == b"ftyp":
        return _media_kind(data)
    return None


def _media_kind(data: bytes) -> str | None:
    end = min(int.from_bytes(data[:4], "big"), HEAD)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}
    if brands & _AVIF:
        return "AVIF"
    return "HEIC" if brands & _HEIC else None


@functools.cache
def missing_extra(kind: str) -> str | None:
    """The command that installs what reads this kind of image; None if nothing is missing."""
    if kind not in EXTRAS:
        return None
    extra, module = EXTRAS[kind]
    return None if importlib.util.find_spec(module) else install_extra(extra)
