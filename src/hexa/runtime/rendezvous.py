"""What torchrun tells its processes: who started them, and how often."""

from __future__ import annotations

import os
import socket


def launcher() -> str:
    """An identifier of the torchrun that started this process, the same for all its processes and restarts.

    Without torchrun it identifies the parent process.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id not in ("", "none"):  # "none" is what torchrun calls every run without an id
        return run_id
    return f"{socket.gethostname()} {os.getppid()}"


def restarts() -> int:
    """The number of times that torchrun has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
