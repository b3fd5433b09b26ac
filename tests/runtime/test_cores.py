"""How many cores this process may use, as control groups tell, and how its threads share them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexa.runtime import cores


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, [1.5]),
        (
            "0::/jobs/one\n",
            {"jobs/cpu.max": "200000 100000", "jobs/one/cpu.max": "max 100000"},
            [2.0],
        ),
        (
            "3:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"},
            [0.5],
        ),
        ("3:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, []),
        ("5:memory:/a\n", {"cpu.max": "150000 100000"}, []),
        ("0::/gone\n", {"cpu.max": "damaged"}, []),
    ],
)
def test_quotas_of_containers(
    tmp_path: Path, own: str, files: dict[str, str], expected: list[float]
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert [
        quota for quota in cores._quotas(tmp_path / "groups", tmp_path / "own") if quota < 1000
    ] == expected


@pytest.mark.parametrize(
    ("given", "quota", "used"),
    [
        ({}, float("inf"), {"GOMP_SPINCOUNT": "10000"}),
        ({}, 2.5, {"GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": "3"}),
        ({"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "5"}, 2.5, {}),
        ({"GOMP_SPINCOUNT": "7"}, float("inf"), {}),
    ],
)
def test_threads_are_limited_to_a_quota_sleep_soon_and_never_against_the_user(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], quota: float, used: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(cores, "allowed_cores", lambda: list(range(64)))
    monkeypatch.setattr(cores, "_quotas", lambda: iter([quota]))
    cores.share_cores()
    assert os.environ == given | used


def test_it_is_said_before_torch_is_imported() -> None:
    """The variables are read as OpenMP is loaded, with torch."""
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
