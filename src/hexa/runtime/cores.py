"""The processor's cores: how many this process may use, and how its threads share them. Does not import torch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Where the system shows its devices.
_DEVICES = Path("/dev")


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


def beside_others(choose: bool) -> str:
    """A warning if other programs use a tenth of the cores or more, on a machine without an NVIDIA GPU, else "".

    Threads that wait for each other are then many times slower (decision 0011). With `choose`, OMP_NUM_THREADS is
    set to the number of idle cores, before torch is imported. Does nothing if OMP_NUM_THREADS is set already.
    """
    if "OMP_NUM_THREADS" in os.environ or next(_DEVICES.glob("nvidia[0-9]*"), None) is not None:
        return ""
    idle, usable = _idle(), usable_cores()
    threads = max(1, round(idle))
    if idle > 0.9 * usable or threads >= usable:
        return ""
    if choose:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        return f"other programs use the cores: {threads} of {usable} threads; OMP_NUM_THREADS sets another number"
    return f"other programs use the cores: {usable} threads may be many times slower than OMP_NUM_THREADS={threads}"


def _idle(seconds: float = 0.2, file: Path = Path("/proc/stat")) -> float:
    """The number of allowed cores that are idle, averaged over `seconds`; all of them if `file` cannot be read."""

    def ticks() -> list[int]:
        """Since the machine's start: all, and those in which a core was idle or waited for a disk."""
        names = {f"cpu{number}" for number in allowed_cores()}
        rows = [line.split()[:9] for line in file.read_text().splitlines()]
        counts = [[int(count) for count in row[1:]] for row in rows if row[0] in names]
        return [sum(map(sum, counts)), sum(row[3] + row[4] for row in counts)]

    with suppress(OSError, ValueError, IndexError, ZeroDivisionError):
        before = ticks()
        time.sleep(seconds)
        every, idle = (now - then for now, then in zip(ticks(), before, strict=True))
        return len(allowed_cores()) * idle / every
    return float(len(allowed_cores()))


def control_groups(
    controller: str,
    groups: Path = Path("/sys/fs/cgroup"),
    own: Path = Path("/proc/self/cgroup"),
) -> Iterator[Path]:
    """The folders of the control groups (version 1 or 2) that this process is in, innermost first."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                home = groups / controller if controllers else groups
                inside = home / path.lstrip("/")
                yield from (
                    folder for folder in (inside, *inside.parents) if folder.is_relative_to(home)
                )


def _quotas(*where: Path) -> Iterator[float]:
    """CPU seconds per second that each enclosing control group may use."""
    return map(_quota, control_groups("cpu", *where))


def _quota(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)  # or "max"
    with suppress(OSError, ValueError):
        quota, period = (
            (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf
