"""Processes of a run watch each other, to tell which one has ended when a collective fails."""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import Store

#: Seconds to investigate a failure. A killed process closes its connections before it is gone.
PATIENCE = 5.0
_NOTE = "hexa: who has ended"


@dataclass(frozen=True)
class Peer:
    """A process of the run. started: in its machine's clock ticks, so that a reused pid is recognised."""

    rank: int
    host: str
    pid: int
    started: str | None = None

    @classmethod
    def here(cls, rank: int) -> Peer:
        """This process."""
        state = _stat(os.getpid())
        return cls(rank, socket.gethostname(), os.getpid(), state[1] if state is not None else None)

    def is_over(self) -> bool:
        """Whether it ran on this machine and has ended, as far as can be told."""
        return (
            self.host == socket.gethostname()
            and _stat(os.getpid()) is not None
            and self.has_ended()
        )

    def has_ended(self) -> bool:
        """Whether a process of this machine and container is gone, or a zombie that its parent has not noticed yet."""
        state = _stat(self.pid)
        return state is None or state[1] != self.started or state[0] in "ZX"


class ProcessEnded(RuntimeError):
    """Another process of the run has ended, so that this one cannot continue. Exit code 1.

    `speaks` is true only in the process that noticed it first, which reports it.
    """

    exit_code = 1

    def __init__(self, what: str, speaks: bool = True) -> None:
        super().__init__(what)
        self.speaks = speaks


class Peers:
    """All processes of the group, as known when it was formed; `watched` are those this process can see end."""

    def __init__(self, store: Store) -> None:
        self.store, self.rank, self.size = store, dist.get_rank(), dist.get_world_size()
        own = Peer.here(self.rank)
        everyone = [own] * self.size
        dist.all_gather_object(everyone, own)
        # on another machine, or in another container, a process cannot be seen
        self.watched = [
            p for p in everyone if p.rank != own.rank and p.host == own.host and not p.has_ended()
        ]

    def ended(self) -> list[Peer]:
        """The watched processes that have ended."""
        return [peer for peer in self.watched if peer.has_ended()]

    def reason(self, error: RuntimeError) -> ProcessEnded | None:
        """The cause of a failed collective; None if it is the caller's mistake.

        The first process to see which one ended leaves a note for all, because those that noticed it end as well and
        could be mistaken for the cause. Waits up to `PATIENCE` seconds.
        """
        of_connection = any(
            word in str(error).lower() for word in ("gloo", "nccl", "connection", "socket")
        )
        if not (self.ended() or of_connection or isinstance(error, dist.DistError)):
            return None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = " and ".join(
                f"process {p.rank} of {self.size} (pid {p.pid}, on {p.host})" for p in self.ended()
            )
            if (found := self._noted(ended and f"{ended} ended")) is not None:
                return found
            time.sleep(0.02)
        cause = " ".join(str(error).split())[:200]
        return self._noted(f"another process failed, which the report of torchrun names ({cause})")

    def _noted(self, what: str) -> ProcessEnded | None:
        """What the first process that knew the cause has left in the store: this one, if nobody has and it says `what`.

        None if nobody knows it, `what` being empty.
        """
        there = own = f"{what}\n{self.rank}" if what else ""
        with suppress(RuntimeError):  # the store was in the process that ended
            there = self.store.compare_set(_NOTE, "", own).decode()
        said = there.partition("\n")[0]
        return ProcessEnded(said, speaks=there == own) if said else None


def agree_on_start(store: Store, rank: int, size: int) -> str:
    """A name for this start of the run, agreed on by all processes and different from those of earlier starts.

    torchrun keeps one store for all its restarts, in which torch would find the addresses of former processes, and the
    number of restarts differs between machines. So every process announces a random name, and the first process answers
    to each. Raises TimeoutError if not all processes arrive.
    """
    if rank > 0:
        own = uuid.uuid4().hex
        store.set(f"hexa/from/{rank}", own)
        name: str = store.get(f"hexa/to/{own}").decode()
        store.set(f"hexa/heard/{name}/{rank}", "")
        return name
    name, missing = uuid.uuid4().hex, set(range(1, size))
    deadline = time.monotonic() + default_pg_timeout.total_seconds()
    while missing:
        for other in sorted(missing):
            # a name may be from an earlier start; then nobody receives the answer
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
    """An identifier of the torchrun that started this process, the same for all its processes and restarts.

    Without torchrun it identifies the parent process.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id not in ("", "none"):  # "none" is what torchrun calls every run without an id
        return run_id
    parent = _stat(os.getppid())
    return (
        f"{socket.gethostname()} {os.getppid()} {parent[1] if parent is not None else ''}".strip()
    )


def restarts() -> int:
    """How often torchrun has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start time of a process from /proc; None if there is none."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    return None
