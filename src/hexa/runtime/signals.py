"""Signal handling: Ctrl-C and other signals ask the work to finish its step, save and stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

import torch

from hexa.runtime import processes
from hexa.runtime.packages import resume_command

#: Seconds within which copies of one signal arrive.
COPIES_SECONDS = 2.0


class Interrupted(Exception):
    """The work was asked to stop, has saved, and can be resumed. `exit_code` is 128 plus the
    signal's number.

    All processes raise it at the same step; `speaks` is True in the main one.
    go_on: the command that continues the work, if it is not the training of a run.
    """

    def __init__(self, number: int, step: int, run: Path | None, go_on: str | None = None) -> None:
        self.number = number
        self.step = step
        self.run = run
        self.speaks = processes.is_main()
        self.exit_code = 128 + number
        if run is not None:
            go_on = resume_command(run)
        remedy = "" if go_on is None else f"; continue with: {go_on}"
        saved = ", which is saved" if remedy and step else ""
        name = signal.Signals(number).name
        super().__init__(f"interrupted by {name} at step {step}{saved}{remedy}")


class Impatient(Exception):
    """A second signal arrived while the process waited for another process."""


#: Signals that schedulers send before the end of a job (submitit, Lightning).
_OF_SCHEDULERS = {signal.SIGUSR1, signal.SIGUSR2}


def stops() -> set[int]:
    """Return the signals that ask for a stop: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2.

    The last three are excluded if the process ignores them, as it ignores SIGHUP under nohup.
    """
    others = {signal.SIGHUP} | _OF_SCHEDULERS
    ignored = {number for number in others if signal.getsignal(number) == signal.SIG_IGN}
    return {signal.SIGINT, signal.SIGTERM} | (others - ignored)


class Interrupts:
    """Record the first of `stops()` in `received`; a later Ctrl-C has its usual effect.

    Other later signals are ignored, because one event may send several: a scheduler signals all
    processes of a job, whose parents pass the signal on, and a closed terminal sends SIGHUP through
    its shell and again when the shell ends. With several processes, a second Ctrl-C is ignored too,
    because torchrun passes it on. SIGKILL still ends the processes immediately. While the process
    `waits`, a second signal after `COPIES_SECONDS` raises Impatient. Handlers need the main thread;
    in other threads this class does nothing. Handlers only record the signal: the work calls
    `noticed` after each step. A previous handler of SIGUSR1 or SIGUSR2, such as submitit's, is
    called after the work has saved and stopped.
    """

    waits: ClassVar[bool] = False
    """True while the main thread waits for another process, which may never answer."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._say = say
        self._said = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in stops():
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # after a process ends, torchrun signals the others, which must still report the reason
        if not isinstance(error, processes.ProcessEnded):
            before = self._before
            self._before = {}
            for number, handler in before.items():
                signal.signal(number, handler)
            last = self.received if isinstance(error, Interrupted) else None
            if last in _OF_SCHEDULERS and callable(before[last]):
                signal.raise_signal(last)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is not None:
            if Interrupts.waits and now - self._since >= COPIES_SECONDS:
                raise Impatient
            return
        self.received = number
        self._since = now
        if not processes.helpers() and signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before.pop(signal.SIGINT))

    def noticed(self) -> int | None:
        """Return the signal that this process received, if any."""
        if self.received is not None:
            self._tell()
        return self.received

    def agreed(self, device: torch.device) -> int | None:
        """Return the signal that any process received, the same on all processes; a collective."""
        if processes.world_size() == 1:
            return self.noticed()
        number = int(processes.all_reduce_max(torch.tensor(self.received or 0, device=device)))
        if not number:
            return None
        self._tell()
        return number

    def _tell(self) -> None:
        """Report once that the signal was noticed."""
        if not self._said:
            self._said = True
            hurry = "" if processes.helpers() else "; Ctrl-C again to stop without saving"
            self._say(f"stopping after saving this step{hurry}")
