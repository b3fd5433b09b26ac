"""Pre-training in several processes of one machine, which torchrun starts."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hexa.config import UserError
from hexa.run.names import CONFIG
from hexa.runtime.signals import Interrupted, Interrupts

#: Asks Linux for a signal when the parent ends (prctl).
_PR_SET_PDEATHSIG = 1
#: Signals that torchrun passes on to its processes, which then save.
_HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
#: Seconds between two looks at whether training has ended or a signal has come.
_LOOK = 0.2
#: The C library, loaded before any fork; only Linux sends a signal when the parent ends.
_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def train(command: Sequence[str], run: Path, num_processes: int) -> None:
    """Carry out `hexa pretrain …` in several processes, or resume its run if that was begun.

    command: the arguments of hexa. run: the folder of the run. A signal that asks for a stop is passed on; the run
    then saves, and Interrupted is raised. Raises UserError if torchrun fails.
    """
    begun = (run / CONFIG).is_file()
    start(["resume", str(run)] if begun else command, f"{run}: training", num_processes)


def evaluate_linear(backbone: str, options: Mapping[str, Any], num_processes: int) -> Any:
    """Return the result of `hexa evaluate linear …` in several processes. Raises as `train` does."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        given = [f"--{name}={value}" for name, value in options.items()]
        words = ["evaluate", "linear", backbone, f"--out={out}", *given]
        start(words, f"{backbone}: evaluation", num_processes)
        return json.loads(out.read_text())


def start(words: Sequence[str], what: str, num_processes: int) -> None:
    """Carry out a command of hexa in several processes. what: names the command in errors."""
    started = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(num_processes), "--signals-to-handle", _HANDLED),
        *("-m", "hexa", *words),
    ]
    # a process group of its own: Ctrl-C reaches torchrun once, from here
    with Interrupts(lambda message: None) as interrupts:  # the run says that it saves
        child = subprocess.Popen(started, process_group=0, preexec_fn=end_with_parent)
        passed_on = False
        while child.poll() is None:
            if interrupts.received is not None and not passed_on:
                child.send_signal(interrupts.received)
                passed_on = True
            time.sleep(_LOOK)
        if interrupts.received is not None:
            raise Interrupted(interrupts.received, 0, None)
    if status := child.returncode:
        raise UserError(f"{what} ended with status {status}; its messages are above")


def end_with_parent() -> None:
    """Let this process end, and its run save, if its parent is killed."""
    if _C is not None:
        _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
