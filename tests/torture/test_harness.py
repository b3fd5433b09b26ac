"""The harness would notice what it is there to notice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hexa.runtime.allocator import keep_freed_memory, return_freed_memory
from hexa.runtime.packages import commit
from tests.torture import conftest
from tests.torture.harness import Ended, Tally, forked


def test_a_child_that_dies_hangs_raises_or_grows_is_seen() -> None:
    assert forked(lambda: os.kill(os.getpid(), signal.SIGSEGV)).signal == signal.SIGSEGV
    assert forked(lambda: time.sleep(60), seconds=0.2).signal == signal.SIGALRM
    assert forked(lambda: 7).value == 7
    assert isinstance(forked(lambda: {}["absent"]).raised, KeyError)
    keep_freed_memory()
    np.ones(75_000_000)  # is kept, as after a test that trains
    # of 400: the machine may take back pages of libraries meanwhile, which the child holds from the beginning
    assert forked(lambda: float(np.ones(50_000_000).sum())).megabytes > 100
    assert forked(lambda: None).megabytes < 50
    return_freed_memory()


def test_only_one_line_with_status_two_is_a_refusal() -> None:
    assert Ended(2, "", "hexa: error: x: no such file\n").complaint is None
    assert Ended(1, "", "hexa: error: x\n").complaint is not None
    assert (
        Ended(2, "", "Traceback (most recent call last):\nhexa: error: x\n").complaint is not None
    )


def test_counts_add_up_over_processes_and_name_what_they_were_made_with(tmp_path: Path) -> None:
    config = SimpleNamespace(stash=pytest.Stash())
    conftest.pytest_configure(config)  # type: ignore[arg-type]
    tally = Tally()
    tally.input("images", True)
    with pytest.raises(AssertionError, match="died"):
        tally.fault("kill -9", False, "it died")
    for output in (
        {"workeroutput": {"tally": tally.groups()}},
        {"workeroutput": {"tally": tally.groups()[:1]}},
        {},
    ):
        conftest.pytest_testnodedown(
            SimpleNamespace(config=config, **output), None
        )  # the last process died
    config.stash[conftest._TALLY].write(tmp_path / "a.json", 0)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["groups"] == [
        {"kind": "fault", "group": "kill -9", "tried": 2, "survived": 0},
        {"kind": "input", "group": "images", "tried": 1, "survived": 1},
    ]
    assert (found["commit"], found["status"]) == (commit(), 0)
