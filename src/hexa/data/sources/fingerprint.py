"""Fingerprints of sources: digests of names, sizes and a sample of the contents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hexa.data.sources.limits import DecodeError

#: Bytes of each sampled file in a fingerprint: all of a photograph, the beginning of a scan of gigabytes.
SAMPLED_BYTES = 4 << 20


def digest(*parts: bytes | str, samples: Iterable[bytes] = (), separator: bytes = b"\0") -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of these parts.

    samples: further, large parts, one at a time in memory; each is followed by the separator.
    """
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
        hashed.update(b"\0")
    for content in samples:
        hashed.update(content)
        hashed.update(separator)
    return hashed.hexdigest()[:16]


def sample(count: int, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the contents of about a hundred of `count` images, evenly spread, for a fingerprint."""
    for index in range(0, count, max(1, count // 100)):
        try:
            yield read(index)
        except DecodeError as error:
            yield str(error).encode(errors="replace")


def size_of(file: str | Path) -> str:
    """Return the size of a file in bytes, as text."""
    with suppress(OSError):
        return str(os.path.getsize(file))
    return "absent"
