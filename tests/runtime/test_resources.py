"""The number of usable cores according to control groups, and the settings of threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hexa.runtime import resources


@pytest.mark.parametrize(
    ("given", "quota", "used"),
    [
        ({}, float("inf"), {"GOMP_SPINCOUNT": "10000"}),
        ({}, 2.5, {"GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": "3"}),
        ({"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "5"}, 2.5, {}),
        ({"GOMP_SPINCOUNT": "7"}, float("inf"), {}),
    ],
)
def test_thread_environment(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], quota: float, used: dict[str, str]
) -> None:
    """Threads are limited by the quota and sleep soon, unless the user has other settings."""
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(resources, "allowed_cores", lambda: list(range(64)))
    monkeypatch.setattr(resources, "_limits", lambda file: iter([[quota, 1]]))
    resources.share_cores()
    assert os.environ == given | used


def test_thread_environment_before_torch() -> None:
    """The variables are set before torch loads OpenMP."""
    watch = """
import os, sys

class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT", "-"), file=sys.stderr, flush=True)
            os._exit(1)

sys.meta_path.insert(0, Watch())
from hexa import cli
cli.main(["pretrain", "digits-moco-v2", "--out", "nowhere"])
"""
    left_out = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    found = subprocess.run(
        [sys.executable, "-c", watch], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stderr.strip() == "10000"
