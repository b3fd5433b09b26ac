"""Recognises images and their format by the name and the first bytes of a file."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Callable

from hexa.data.sources.limits import DecodeError
from hexa.runtime.parsing import read_resource

_TABLE = read_resource("hexa.data.sources", "kinds.yaml")
#: Number of bytes at the beginning of a file that `kind_of` needs.
HEAD = 256
#: Suffixes of images: a file with such a suffix is an image, possibly a broken one. Other files are opened.
EXTENSIONS = frozenset(_TABLE["images"])
#: Formats that need an extra: name of the extra, and module that reads the format.
EXTRAS: dict[str, list[str]] = _TABLE["extras"]
#: All formats, for messages.
ALL: tuple[str, ...] = (*_TABLE["beginnings"], *_TABLE["brands"])
#: Maximum length of a suffix.
_LONGEST_SUFFIX = 16
_BEGINNINGS = [f"({one})".encode() for one in _TABLE["beginnings"].values()]
_ANY = re.compile(b"|".join(_BEGINNINGS), re.DOTALL)


def kind_of(data: bytes) -> str | None:
    """Return the format of an image that begins with `data`, such as "JPEG"; None for other files."""
    found = _ANY.match(data)
    if found is not None:
        return ALL[(found.lastindex or 1) - 1]
    if data[4:8] == b"ftyp":
        return _media_kind(data)
    return None


def _media_kind(data: bytes) -> str | None:
    """Return the format of an ISO media file by its brands, which are four bytes each."""
    end = min(int.from_bytes(data[:4], "big"), HEAD)
    brands = {data[at : at + 4].decode("latin-1") for at in (8, *range(16, end, 4))}
    return next((kind for kind, names in _TABLE["brands"].items() if brands & {*names}), None)


@functools.cache
def missing_extra(kind: str) -> str | None:
    """Return the command that installs the reader of a format; None if the reader is installed."""
    if kind not in EXTRAS:
        return None
    from hexa.runtime.packages import install_extra

    extra, module = EXTRAS[kind]
    return None if importlib.util.find_spec(module) else install_extra(extra)


def why_left_out(name: str, read_first: Callable[[int], bytes]) -> str | None:
    """Return None for an image; for any other file, its kind, such as its suffix, with a remedy if there is one.

    The content decides, unless the suffix is in `EXTENSIONS` or is a text suffix, because opening a million files takes
    minutes. read_first: number of bytes -> beginning of the file; may raise DecodeError.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix in EXTENSIONS:
        return None
    if suffix in _TABLE["texts"]:
        return suffix
    if not 1 < len(suffix) <= _LONGEST_SUFFIX:
        suffix = ""
    try:
        kind = kind_of(read_first(HEAD))
    except DecodeError:
        return "unreadable"
    if kind is None or (kind == "TIFF" and suffix in _TABLE["raw"]):
        return suffix or "without suffix"
    command = missing_extra(kind)
    return None if command is None else f"{suffix or kind} ({command})"
