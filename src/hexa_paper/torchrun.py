"""Pre-training in several processes of one machine, which torchrun starts."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hexa.config import UserError
from hexa.run.names import CONFIG
from hexa.runtime.signals import Interrupted, stops

#: Asks Linux for a signal when the parent ends (prctl).
_PR_SET_PDEATHSIG = 1
#: Signals that torchrun passes on to its processes, which then save.
_HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"


def train(command: Sequence[str], run: Path, num_processes: int) -> None:
    """Carry out `hexa pretrain …` in several processes, or resume its run if that was begun.

    command: the arguments of hexa. run: the folder of the run. A signal that asks for a stop is passed on; the run
    then saves, and Interrupted is raised. Raises UserError if torchrun fails.
    """
    begun = (run / CONFIG).is_file()
    words = ["resume", str(run)] if begun else command
    started = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(num_processes), "--signals-to-handle", _HANDLED),
        *("-m", "hexa", *words),
    ]
    # a process group of its own: Ctrl-C reaches torchrun once, from here
    child = subprocess.Popen(started, process_group=0, preexec_fn=_end_with_parent)
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in stops()}
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise Interrupted(received[0], 0, None)
    if status:
        raise UserError(f"{run}: training ended with status {status}; its messages are above")


def _end_with_parent() -> None:
    """Let this process end, and its run save, if its parent is killed; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
