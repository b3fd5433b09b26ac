"""Locks held by other processes."""

from __future__ import annotations

import os
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


def test_lock_holder(tmp_path: Path) -> None:
    """A lock ends with its holder even if child processes survive, such as image decoders of a
    killed training."""
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


def test_lock_cleanup(tmp_path: Path) -> None:
    """Nothing is left except files of others."""
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


def test_lock_symlink(tmp_path: Path) -> None:
    """A link in a foreign run folder must not cause another file to be overwritten."""
    (tmp_path / "precious").write_text("content")
    for target in (tmp_path / "precious", tmp_path / "missing" / "deep"):
        (tmp_path / "lock").symlink_to(target)
        with pytest.raises(OSError, match="lock"), locked(tmp_path / "lock", "works"):
            pass
        (tmp_path / "lock").unlink()
    assert (tmp_path / "precious").read_text() == "content"
