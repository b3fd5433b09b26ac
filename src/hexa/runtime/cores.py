"""CPU cores: the number that this process may use, and the number of threads. Does not import
torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def allowed_cores() -> list[int]:
    """Return the indices of the cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of cores that this process may use, also limited by a container's CPU
    quota."""
    return max(1, math.ceil(min([len(allowed_cores()), *_quotas()])))


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


def _quotas() -> Iterator[float]:
    """Yield the CPU seconds per second that each enclosing control group allows."""
    for folder in control_groups():
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
