"""Locks against other processes, and children whose parent is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.runtime.alone import alone

HOLD = """
import sys
from pathlib import Path
from hexa.runtime.alone import alone
with alone(Path(sys.argv[1]), "works"):
    print("held", flush=True)
    sys.stdin.read()
"""
CHILD = """
import signal, sys
from hexa.runtime.alone import end_with
end_with(int(sys.argv[1]))
print("ready", flush=True)
signal.pause()
"""
PARENT = """
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
signal.pause()
"""


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "one"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"^process {holder.pid} on .* works$"), alone(lock, "works"):
            pass
        holder.kill()
    with alone(lock, "works"):
        assert lock.read_text().startswith(f"{os.getpid()} on ")
    with alone(lock, "works"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.kill()
    parent.wait()
    assert select.select([parent.stdout], [], [], 30)[0], "the child lives on"
    assert parent.stdout.read() == b""  # its end of the pipe is closed
    parent.stdout.close()
