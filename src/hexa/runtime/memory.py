"""The memory that this process may use. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from hexa.runtime.cores import control_groups


def usable_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or a container's
    limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *limits()])


def limits() -> Iterator[int]:
    """Yield the bytes of memory that each enclosing control group allows."""
    for folder in control_groups():
        with suppress(OSError, ValueError):  # no such file, or "max"
            yield int((folder / "memory.max").read_text())
