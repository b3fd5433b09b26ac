"""The terminal is closed: trainings save and end, as after SIGTERM, unless they were told not to hang up."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from hexa.runtime.lock import locked
from hexa.session.folder import LOCK
from hexa.training.journal import METRICS
from tests.end_to_end.endings import difference, options
from tests.torture.harness import Tally, hexa

WORDS = ("pretrain", "digits-moco-v2", *options(epochs=6), "--out")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hears_hang_ups")]


class Terminal:
    """A pseudo-terminal in which a command is the leader of the session; nothing can be written once it is closed."""

    def __init__(self, *command: str, cwd: Path) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def until(self, journal: Path, words: str) -> None:
        """Read what is shown until the journal has these words."""
        said = b""
        while not (journal.exists() and words in journal.read_text()):
            assert self.process.poll() is None, said.decode(errors="replace")
            if select.select([self._master], [], [], 0.01)[0]:
                said += os.read(self._master, 2**16)

    def close(self) -> None:
        os.close(self._master)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert hexa(*WORDS, folder).code == 0
    return folder


@pytest.mark.parametrize("way", ["as the only process", "in a shell", "in a shell, behind it", "with nohup"])
def test_a_terminal_that_is_closed(tmp_path: Path, whole: Path, way: str, tally: Tally) -> None:
    """A shell sends SIGHUP to its jobs and ends, at which the kernel sends it to the one in front once more."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "hexa", *WORDS, str(folder)]
    if "shell" not in way and "nohup" not in way:
        terminal = Terminal(*command, cwd=tmp_path)
    else:
        terminal = Terminal("bash", "--norc", "--noprofile", "-i", cwd=tmp_path)
        terminal.type(f"{'nohup ' * ('nohup' in way)}{shlex.join(command)}{' &' * ('behind' in way)}")
    terminal.until(folder / METRICS, '"step": 2,')
    terminal.close()
    status = terminal.process.wait(60)
    with locked(folder / LOCK, "trains on", patience=120):
        events = [json.loads(line)["event"] for line in (folder / METRICS).read_text().splitlines()]
    again = hexa("resume", folder)
    left = difference(folder, whole) if again.code == 0 else again.err
    as_expected = events[-1] == "end" if "nohup" in way else events[-2:] == ["checkpoint", "interrupted"]
    tally.fault("a closed terminal (SIGHUP)", as_expected and left is None)
    assert as_expected, events[-5:]
    assert left is None
    if way == "as the only process":
        assert status == 128 + signal.SIGHUP
