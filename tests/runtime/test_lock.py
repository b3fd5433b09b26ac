"""Locks against other processes, and children whose parent is killed."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.runtime.lock import locked

HOLD = """
import os, sys
from pathlib import Path
from hexa.runtime.lock import locked
with locked(Path(sys.argv[1]), "works"):
    child = os.fork()
    if child:
        print(child, flush=True)
    sys.stdin.read()
    os._exit(0)
"""
CHILD = """
import signal, sys
from hexa.runtime.signals import end_with
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
    """Even if children outlive the holder, as those that decode images do when the training is killed."""
    lock = tmp_path / "locks" / "one"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        child = int(holder.stdout.readline())
        with (
            pytest.raises(UserError, match=f"^process {holder.pid} on .* works$"),
            locked(lock, "works"),
        ):
            pass
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives
        with locked(
            lock, "works", patience=20
        ):  # a child that was only just forked may not have let go yet
            assert lock.read_text().startswith(f"{os.getpid()} on ")
    with locked(lock, "works"):
        pass


def test_nothing_is_left_behind_but_what_others_put_there(tmp_path: Path) -> None:
    with locked(tmp_path / "new" / "deep" / "lock", "works"):
        assert (tmp_path / "new" / "deep" / "lock").exists()
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "new" / "deep" / "lock", "works"):
        (tmp_path / "new" / "file").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "file"]
    (tmp_path / "empty").mkdir()
    with locked(tmp_path / "empty" / "lock", "works"):
        pass
    assert (tmp_path / "empty").is_dir()  # it was there before
    with locked(tmp_path / "new" / "lock", "works"):
        shutil.rmtree(tmp_path / "new")


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    """Whoever hands over a run folder must not choose a file to be overwritten."""
    (tmp_path / "precious").write_text("content")
    for target in (tmp_path / "precious", tmp_path / "missing" / "deep"):
        (tmp_path / "lock").symlink_to(target)
        with pytest.raises(OSError, match="lock"), locked(tmp_path / "lock", "works"):
            pass
        (tmp_path / "lock").unlink()
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone"
)
def test_a_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"ready\n"
    parent.kill()
    parent.wait()
    assert select.select([parent.stdout], [], [], 30)[0], "the child lives on"
    assert parent.stdout.read() == b""  # its end of the pipe is closed
    parent.stdout.close()
