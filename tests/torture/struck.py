"""The command line in a child process to which something happens at a moment of our choosing."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.torture.harness import Ended

#: Functions before whose calls something happens, by what they do.
HOOKS = {
    "train": "hexa.run.run:_Session._train",
    "adapt": "hexa.adaptation.command:adapt",
    "plan": "hexa.adaptation.given:Given.costs",
    "conclude": "hexa.adaptation.command:_conclude",
    "evaluate": "hexa.evaluation.measure:measure",
    "reproduce": "hexa_paper.loop:make",
    "step": "hexa.training.trainer:Trainer._train_step",
    "append to the journal": "hexa.training.journal:Journal._append",
    "monitor": "hexa.run.monitor:KnnMonitor.__call__",
    "save a checkpoint": "hexa.runtime.checkpoints:save",
    "sum up a checkpoint": "hexa.runtime.checkpoints:checksum",
    "end a checkpoint": "torch.serialization:_open_zipfile_writer_buffer.__exit__",  # in its temporary file
}
PRELOADED = ["hexa.cli", "hexa.run.run", "hexa.methods.moco"]


@dataclass(frozen=True)
class Strike:
    """`act` happens right before call number `call` of a function of HOOKS."""

    act: Callable[[], object]
    at: str
    call: int = 1

    def arm(self) -> None:
        """Prepare this process."""
        owner, last = owner_of(self.at)
        real = getattr(owner, last)
        numbers = itertools.count(1)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if next(numbers) == self.call:
                self.act()
            return real(*arguments, **named)

        setattr(owner, last, wrapped)


def owner_of(hook: str) -> tuple[Any, str]:
    """The module or class that has the function of HOOKS, and the function's name in it."""
    module, _, name = HOOKS[hook].partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, last


# -- what may happen ------------------------------------------------------------------------------------------------


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


kill = partial(send, signal.SIGKILL)


def kill_a_worker() -> None:
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


def fill(most: int = 1) -> None:
    """From now on no file may become larger than this: as a full disk, but for what the system calls it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


# -- the process ----------------------------------------------------------------------------------------------------


def struck(*arguments: object, strike: Strike | None = None, seconds: float = 300) -> Ended:
    """Run `hexa ARGUMENTS` to its end, whatever that is; all that it said is `err`.

    It is a child of a server that has everything imported: a second, not five.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=([*map(str, arguments)], strike, theirs))
    process.start()
    theirs.close()
    said = b""
    until = time.monotonic() + seconds
    while ours.poll(max(0.0, until - time.monotonic())):
        part = os.read(ours.fileno(), 2**16)
        if not part:
            break
        said += part
    process.join(max(0.0, until - time.monotonic()))
    if process.exitcode is None:
        process.kill()
        process.join()
    ours.close()
    return Ended(process.exitcode, "", said.decode(errors="backslashreplace"))


def _work(arguments: list[str], strike: Strike | None, said: Connection) -> None:
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    said.close()
    # The server's streams know whether what they wrote to could seek, such as a log; this pipe can't.
    sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
    torch.set_num_threads(1)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where tests run under nohup
    if strike is not None:
        strike.arm()
    from hexa import cli

    sys.exit(cli.main(arguments))
