"""Reads the header of a JPEG XL file without a decoder, to refuse large images."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hexa.data.sources.decode import DecodeError

_CODESTREAM = b"\xff\x0a"
#: Maximum number of boxes before the codestream in a container.
_MOST_BOXES = 100
#: Number of bytes of the codestream that hold the size of the image.
_HEADER_BYTES = 16
#: Number of bits in the four encodings of a side, and ratios of width to height.
_SIDE_BITS = (9, 13, 18, 30)
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


class Header(NamedTuple):
    """The stored size of a JPEG XL image; turned: True if the decoder turns the image upright."""

    height: int
    width: int
    turned: bool


def header_of(data: bytes) -> Header:
    """Return the header of a JPEG XL file, with or without a container. Raises DecodeError if it is damaged."""
    try:
        start = _codestream(data)
        if data[start : start + 2] != _CODESTREAM:
            raise IndexError
        return _read(_Bits(data[start + 2 : start + 2 + _HEADER_BYTES]))
    except (struct.error, IndexError):
        raise DecodeError("cannot be read as JPEG XL: its header is broken") from None


def _codestream(data: bytes) -> int:
    """Return the offset of the codestream: 0, or the offset in the first box of the codestream."""
    if data.startswith(_CODESTREAM):
        return 0
    at = 0
    for _ in range(_MOST_BOXES):
        size, kind = struct.unpack_from(">I4s", data, at)
        begin = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, begin)
            begin += 8
        if kind == b"jxlc":
            return begin
        if kind == b"jxlp":
            return begin + 4
        if size < 8:
            break
        at += size
    raise IndexError


class _Bits:
    """Reads numbers bit by bit, lowest bits of the first byte first. Raises IndexError at the end."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "little")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError
        taken = self._value % (1 << count)
        self._value >>= count
        return taken


def _read(bits: _Bits) -> Header:
    small = bits.take(1) == 1
    height = _side(bits, small)
    ratio = bits.take(3)
    if ratio == 0:
        width = _side(bits, small)
    else:
        over, under = _RATIOS[ratio - 1]
        width = height * over // under
    all_default = bits.take(1) == 1
    extra_fields = not all_default and bits.take(1) == 1
    turned = extra_fields and bits.take(3) > 0
    return Header(height, width, turned)


def _side(bits: _Bits, small: bool) -> int:
    if small:
        return 8 * (bits.take(5) + 1)
    return bits.take(_SIDE_BITS[bits.take(2)]) + 1
