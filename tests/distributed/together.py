"""Several processes that run one function of a test, as torchrun would start them but at the price of a fork."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

from hexa.runtime import processes

#: Imported once, by the server that all test processes are forked from: most of the time of a fresh one goes there.
_PRELOADED = ["torch", "timm", "hexa.methods.moco", "hexa.hard_examples", "hexa.training.trainer", "pytest"]


def run_together(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """work(*arguments) in `count` processes of one thread on the CPU; raises what one of them raised."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.set_forkserver_preload(_PRELOADED)
    torch.multiprocessing.start_processes(
        _member, (count, port, work, arguments), nprocs=count, start_method="forkserver"
    )


def _member(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    torch.set_num_threads(1)
    processes.initialize(torch.device("cpu"))
    work(*arguments)
    processes.shutdown()
