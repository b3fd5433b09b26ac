"""The tally that every torture test reports to, over all processes of a test run."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.runtime.packages import commit
from tests.torture.harness import Tally

_TALLY = pytest.StashKey[Tally]()
REPORT = "HEXA_TORTURE_REPORT"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally()
    commit()  # now: what is committed during the tests is not what they run


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Counts inputs and faults over the whole test run."""
    found: Tally = request.config.stash[_TALLY]
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add what a process of pytest-xdist counted."""
    for count in node.workeroutput.get("tally", ()) if hasattr(node, "workeroutput") else ():
        node.config.stash[_TALLY].add(**count)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    counts = [vars(count) for _, count in sorted(session.config.stash[_TALLY].counts.items())]
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = counts
    elif (target := os.environ.get(REPORT)) and counts:
        Path(target).write_text(json.dumps(report(counts, exitstatus), indent=2, ensure_ascii=False) + "\n", "utf-8")


def report(counts: list[dict[str, Any]], status: int) -> dict[str, Any]:
    """The counts and what they were made with. commit: ends in -dirty if files differ. status: 0 if no test failed."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "command": "make torture",
        "status": int(status),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "groups": counts,
    }
