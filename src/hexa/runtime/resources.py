"""Cores and memory that this process may use, and the settings that keep them busy. Does not import
torch."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: mallopt(3): number of a parameter, and the bytes to keep.
_TRIM_THRESHOLD = (-1, (2 << 30) - 1)
#: mallopt(3): number of a parameter, and its value in bytes; older glibc accepts at most 32 MiB.
#: Activations of 128 images at 112 × 112 with 96 channels have 588 MiB.
_MMAP_THRESHOLDS = ((-3, 1 << 30), (-3, 32 << 20))


def allowed_cores() -> list[int]:
    """Return the indices of the cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of cores that this process may use, also limited by a container's CPU
    quota."""
    quotas = (seconds / period for seconds, period in _limits("cpu.max"))
    return max(1, math.ceil(min([len(allowed_cores()), *quotas])))


def share_cores() -> None:
    """Set OpenMP's environment for shared machines, unless OpenMP is already loaded; the user's
    settings take precedence.

    Waiting threads spin for a thirtieth of libgomp's default time and then sleep, so that another
    process gets their core. The number of threads is at most `usable_cores`: OpenMP does not know a
    container's quota, and threads stall once it is used up.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if usable_cores() < len(allowed_cores()):
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))


def control_groups() -> Iterator[Path]:
    """Yield the folders of this process's control groups (version 2), innermost first."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                inside = Path("/sys/fs/cgroup", line.removeprefix("0::/"))
                yield from (inside, *inside.parents)


def _limits(file: str) -> Iterator[list[int]]:
    """Yield the numbers in a file of each enclosing control group, such as cpu.max."""
    for folder in control_groups():
        with suppress(OSError, ValueError):  # no such file, or "max"
            yield [int(number) for number in (folder / file).read_text().split()]


def usable_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or a container's
    limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(most for (most,) in _limits("memory.max"))])


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
