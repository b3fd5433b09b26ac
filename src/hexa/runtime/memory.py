"""The memory that this process may use. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from hexa.runtime.cores import control_groups


def usable_memory() -> int:
    """Bytes of the machine's memory, or of a container's share of it."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *limits()])


def limits() -> Iterator[int]:
    """Bytes that each enclosing control group may use."""
    for folder in control_groups():
        with suppress(OSError, ValueError):  # no such file, or "max"
            yield int((folder / "memory.max").read_text())
