"""Reads a JPEG's header without a decoder, in a few microseconds where PIL takes fifty to open a file."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

BEGINNING = b"\xff\xd8\xff"
#: Markers of the frames that libjpeg decodes, of other segments that may precede an image, and of its first scan.
_FRAMES = frozenset((0xC0, 0xC1, 0xC2, 0xC9, 0xCA))
_PROGRESSIVE = frozenset((0xC2, 0xCA))
_OTHERS = frozenset((0xC4, 0xCC, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE))
_SCAN = 0xDA
_MOST_SEGMENTS = 1000


class Frame(NamedTuple):
    """The size of an image in any format. scans: whether it is a JPEG that may be stored in several scans."""

    height: int
    width: int
    channels: int
    scans: bool


def frame_of(data: bytes) -> Frame | None:
    """The frame of an 8-bit JPEG whose segments follow each other without gaps; None for any other file.

    Such a header is unambiguous, so that what is checked here is what a decoder will see.
    """
    if not data.startswith(BEGINNING):
        return None
    at, height, width, channels, progressive = 2, 0, 0, 0, False
    with suppress(struct.error, IndexError):
        for _ in range(_MOST_SEGMENTS):
            mark, kind, length = struct.unpack_from(">BBH", data, at)
            if mark != 0xFF or length < 2:
                return None
            if kind in _FRAMES and not channels:
                bits, height, width, channels = struct.unpack_from(">BHHB", data, at + 4)
                progressive = kind in _PROGRESSIVE
                if bits != 8:
                    return None
            elif kind == _SCAN:
                return Frame(height, width, channels, scans=progressive or data[at + 4] < channels)
            elif kind not in _OTHERS:
                return None
            at += 2 + length
    return None
