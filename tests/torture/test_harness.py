"""The harness would notice what it is there to notice."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hexa.runtime.packages import commit
from tests.torture import conftest
from tests.torture.harness import Count, Ended, Tally, forked


def test_a_child_that_dies_is_seen() -> None:
    found = forked(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    assert found.signal == signal.SIGSEGV


def test_a_child_that_hangs_is_ended() -> None:
    assert forked(lambda: time.sleep(60), seconds=0.2).signal == signal.SIGALRM


def test_a_childs_value_error_and_memory_are_seen() -> None:
    assert forked(lambda: 7).value == 7
    assert isinstance(forked(lambda: {}["absent"]).raised, KeyError)
    # of 400: the machine may take back pages of libraries meanwhile, which the child holds from the beginning
    assert forked(lambda: float(np.ones(50_000_000).sum())).megabytes > 100
    assert forked(lambda: None).megabytes < 50


def test_only_one_line_with_status_two_is_a_refusal() -> None:
    assert Ended(2, "", "hexa: error: x: no such file\n", 0.1).complaint is None
    assert Ended(1, "", "hexa: error: x\n", 0.1).complaint is not None
    assert Ended(2, "", "Traceback (most recent call last):\nhexa: error: x\n", 0.1).complaint is not None


def test_counts_are_kept_by_group() -> None:
    tally = Tally()
    tally.input("images", True)
    tally.input("images", False)
    tally.fault("images", True)
    assert [(c.kind, c.tried, c.survived) for c in tally.counts.values()] == [("input", 2, 1), ("fault", 1, 1)]


def test_a_count_names_what_it_was_made_with_and_adds_up_over_processes() -> None:
    config = SimpleNamespace(stash=pytest.Stash())
    conftest.pytest_configure(config)  # type: ignore[arg-type]
    counts = [vars(Count("fault", "kill -9", 3, 2)), vars(Count("input", "images", 1, 1))]
    for node in (SimpleNamespace(config=config, workeroutput={"tally": counts}), SimpleNamespace(config=config)):
        conftest.pytest_testnodedown(node, None)  # the second process died
    conftest.pytest_testnodedown(SimpleNamespace(config=config, workeroutput={"tally": counts[:1]}), None)
    assert config.stash[conftest._TALLY].counts == {
        ("fault", "kill -9"): Count("fault", "kill -9", 6, 4),
        ("input", "images"): Count("input", "images", 1, 1),
    }
    found = conftest.report(counts, 0)
    assert found["groups"] == counts
    assert found["commit"] == commit()
    assert found["cores"] >= 1
    assert found["torch"] == torch.__version__
