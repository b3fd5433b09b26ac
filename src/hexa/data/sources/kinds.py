"""Decides by the name and the first bytes of a file whether it is an image, and of which kind."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Callable

from hexa.data.sources.limits import DecodeError
from hexa.runtime.parsing import read_resource

_TABLE = read_resource("hexa.data.sources", "kinds.yaml")
#: Bytes at the beginning of a file that `kind_of` needs.
HEAD = 256
#: Suffixes that are taken at their word: such a file is an image, or a broken one. All other files are looked into.
EXTENSIONS = frozenset(_TABLE["images"])
#: Kinds that need an extra: its name, and the module that reads them.
EXTRAS: dict[str, list[str]] = _TABLE["extras"]
#: All kinds, for messages.
ALL: tuple[str, ...] = (*_TABLE["beginnings"], *_TABLE["brands"])
#: What follows the last point of a name is a suffix up to this length.
_LONGEST_SUFFIX = 16
_BEGINNINGS = [f"({one})".encode() for one in _TABLE["beginnings"].values()]
_ANY = re.compile(b"|".join(_BEGINNINGS), re.DOTALL)


def kind_of(data: bytes) -> str | None:
    """The kind of an image that begins with `data`, such as "JPEG"; None for any other file."""
    found = _ANY.match(data)
    if found is not None:
        return ALL[(found.lastindex or 1) - 1]
    if data[4:8] == b"ftyp":
        return _media_kind(data)
    return None


def _media_kind(data: bytes) -> str | None:
    """The kind of an ISO media file, whose brands follow at every fourth byte."""
    end = min(int.from_bytes(data[:4], "big"), HEAD)
    brands = {data[at : at + 4].decode("latin-1") for at in (8, *range(16, end, 4))}
    return next((kind for kind, names in _TABLE["brands"].items() if brands & {*names}), None)


@functools.cache
def missing_extra(kind: str) -> str | None:
    """The command that installs what reads this kind of image; None if nothing is missing."""
    if kind not in EXTRAS:
        return None
    from hexa.runtime.packages import install_extra

    extra, module = EXTRAS[kind]
    return None if importlib.util.find_spec(module) else install_extra(extra)


def why_left_out(name: str, read_first: Callable[[int], bytes]) -> str | None:
    """None if a file is an image; otherwise what it is counted as, such as its suffix, perhaps with a remedy.

    The content decides, unless the suffix is one of `EXTENSIONS` or that of a text beside an image: to open a million
    files would take minutes.
    read_first: returns as many bytes of the file's beginning as it is told to; may raise DecodeError.
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
