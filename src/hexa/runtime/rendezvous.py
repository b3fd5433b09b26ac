"""Rendezvous of the processes that torchrun starts, and the identity of each start."""

from __future__ import annotations

import os
import socket
import time
import uuid

from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import Store


def agree_on_start(store: Store, rank: int, size: int) -> str:
    """Return a name for this start of the run, the same on all processes and different from earlier
    starts.

    torchrun keeps one store over all restarts, in which torch would find the addresses of previous
    processes, and machines may count restarts differently. Therefore every process announces a
    random name, and the first process answers each one. Raises TimeoutError if not all processes
    arrive.
    """
    if rank > 0:
        own = uuid.uuid4().hex
        store.set(f"hexa/from/{rank}", own)
        name: str = store.get(f"hexa/to/{own}").decode()
        store.set(f"hexa/heard/{name}/{rank}", "")
        return name
    name = uuid.uuid4().hex
    missing = set(range(1, size))
    deadline = time.monotonic() + default_pg_timeout.total_seconds()
    while missing:
        for other in sorted(missing):
            # a name may belong to an earlier start; then nobody receives the answer
            if store.check([f"hexa/from/{other}"]):
                store.set(f"hexa/to/{store.get(f'hexa/from/{other}').decode()}", name)
            if store.check([f"hexa/heard/{name}/{other}"]):
                missing.remove(other)
        if missing and time.monotonic() > deadline:
            raise TimeoutError(
                f"process {min(missing)} of {size} did not start within {default_pg_timeout}"
            )
        time.sleep(0.01)
    return name


def launcher() -> str:
    """Return an identifier of the torchrun that started this process, the same for all its
    processes and restarts.

    Without torchrun it identifies the parent process.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id not in ("", "none"):  # torchrun uses "none" for every run without an id
        return run_id
    return f"{socket.gethostname()} {os.getppid()}"


def restarts() -> int:
    """Return the number of times that torchrun has restarted this process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
