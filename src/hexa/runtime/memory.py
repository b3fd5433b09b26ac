"""The memory that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: Limits of containers, of version 2 and 1 of Linux's control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Bytes of the machine's memory, or of what its container may use if that is less."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            limit = min(limit, int(Path(file).read_text()))
    return limit
