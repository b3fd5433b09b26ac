"""The processor's cores: how many this process may use, and how its threads share them. Does not import torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def allowed_cores() -> list[int]:
    """The numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many cores this process may use, limited by a container's share of their time."""
    return max(1, math.ceil(min([len(allowed_cores()), *_quotas()])))


def share_cores() -> None:
    """Set OpenMP's environment for machines that are shared, if it is not loaded yet; what the user has set stays.

    Threads that wait for each other spin for a thirtieth of libgomp's time and then sleep, so that another process gets
    their core. There are at most `usable_cores` of them: OpenMP does not know a container's share, and threads stall
    once it is used up.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if usable_cores() < len(allowed_cores()):
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))


def control_groups() -> Iterator[Path]:
    """The folders of the control groups (version 2) that this process is in, innermost first."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                inside = Path("/sys/fs/cgroup", line.removeprefix("0::/"))
                yield from (inside, *inside.parents)


def _quotas() -> Iterator[float]:
    """CPU seconds per second that each enclosing control group may use."""
    for folder in control_groups():
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
