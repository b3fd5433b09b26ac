"""The processor's cores: how many this process may use, and how many others use. Does not import torch."""

from __future__ import annotations

import math
import os
import time
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


def limit_threads() -> None:
    """Limit the threads of OpenMP, if it is not loaded yet, to `usable_cores`, unless the user has set a limit.

    OpenMP does not know a container's share, and threads stall once it is used up.
    """
    if usable_cores() < len(allowed_cores()):
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))


def crowding(threads: int, seconds: float = 0.2) -> tuple[str, str] | None:
    """What other processes use, measured for `seconds`, and what to do; None if enough cores are free."""
    if threads == 1:  # waits for nobody, and could not be fewer
        return None
    used = _used_by_others(seconds)
    free = len(allowed_cores()) - used
    if threads <= free + 0.5:
        return None
    return (
        f"other processes use {used:.1f} of {len(allowed_cores())} cores",
        f"{threads} threads have to wait for cores and for each other: "
        f"OMP_NUM_THREADS={max(1, round(free))} can be many times as fast",
    )


def _used_by_others(seconds: float) -> float:
    """Cores used by other processes, a mean over these seconds; 0 if the system does not report it."""
    try:
        before, own = _busy_seconds(), sum(os.times()[:2])
        begin = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begin
        return max(0.0, (_busy_seconds() - before - (sum(os.times()[:2]) - own)) / passed)
    except OSError:
        return 0.0


def _busy_seconds() -> float:
    """Time that this process's cores have spent on any process, or on other virtual machines (proc(5))."""
    names = {f"cpu{number}" for number in allowed_cores()}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *times = line.split()
        if name in names:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, times)
            total += user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


def _quotas(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[float]:
    """CPU seconds per second that each enclosing control group (version 1 or 2) may use."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                home = groups / "cpu" if controllers else groups
                inside = home / path.lstrip("/")
                yield from (_quota(folder) for folder in (inside, *inside.parents) if folder.is_relative_to(home))


def _quota(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)  # or "max"
    with suppress(OSError, ValueError):
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf
