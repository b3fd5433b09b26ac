"""The C library's allocator: keep the memory that a step frees for the next step. Does not import
torch."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

#: mallopt(3): number of a parameter, and the bytes to keep.
_TRIM_THRESHOLD = (-1, (2 << 30) - 1)
#: mallopt(3): number of a parameter, and its value in bytes; older glibc accepts at most 32 MiB.
#: Activations of 128 images at 112 × 112 with 96 channels have 588 MiB.
_MMAP_THRESHOLDS = ((-3, 1 << 30), (-3, 32 << 20))


@functools.cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 2 GiB of freed memory in blocks of less than 1 GiB; with other C
    libraries do nothing.

    By default glibc returns the tensors of every step to the system, which then clears the same
    pages again for the next step. This costs 2 to 5 % of the time of a small network on a CPU, and
    almost half of the time of EfficientNet-Lite0 at 96 pixels. Settings of the user (MALLOC_…,
    GLIBC_TUNABLES) take precedence. Returns True if glibc was configured.
    """
    if sys.platform != "linux" or any(
        name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return (
        mallopt is not None
        and any(mallopt(*most) for most in _MMAP_THRESHOLDS)
        and mallopt(*_TRIM_THRESHOLD) == 1
    )


def return_freed_memory() -> None:
    """Return the memory that glibc keeps to the system, so that the process grows by later
    allocations."""
    if (
        sys.platform == "linux"
        and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None
    ):
        trim(0)
