"""Several processes that run one function of a test, as torchrun would start them but at the price of a fork."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

from hexa.runtime import processes

#: Imported once, by the server that all test processes are forked from: most of the time of a fresh one goes there.
_PRELOADED = [
    "torch",
    "timm",
    "hexa.methods.moco",
    "hexa.hard_examples",
    "hexa.training.trainer",
    "pytest",
]


def run_together(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return work(*arguments) of each of `count` single-threaded processes on the CPU: tensors and
    plain values.

    Raises the exception of a failed process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        given = (count, port, folder, work, arguments)
        torch.multiprocessing.start_processes(
            _member, given, nprocs=count, start_method="forkserver"
        )
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(count)]


def _member(
    rank: int, count: int, port: int, folder: str, work: Callable[..., Any], arguments: Any
) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
    }
    torch.set_num_threads(1)
    processes.initialize(torch.device("cpu"))
    torch.save(work(*arguments), f"{folder}/{rank}.pt")
    processes.shutdown()
