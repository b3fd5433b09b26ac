"""The tally that every torture test reports to, over all processes of a test run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

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
    return request.config.stash[_TALLY]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add what a process of pytest-xdist counted."""
    node.config.stash[_TALLY].add(getattr(node, "workeroutput", {}).get("tally", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    tally = session.config.stash[_TALLY]
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = tally.groups()
    elif (target := os.environ.get(REPORT)) and tally.counts:
        tally.write(Path(target), int(exitstatus))
