"""The tally that every torture test reports to."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest

from hexa.runtime.packages import commit
from tests.torture.harness import Tally

_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Counts inputs and faults over the whole test run."""
    found: Tally = request.config.stash[_TALLY]
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    target, counts = os.environ.get("HEXA_TORTURE_REPORT"), session.config.stash[_TALLY].counts
    if target and counts:
        report = {
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "command": "HEXA_TORTURE_REPORT=FILE.json python -m pytest tests/torture -m ''",
            "groups": [vars(count) for _, count in sorted(counts.items())],
        }
        Path(target).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
