"""How many cores this process may use, as control groups tell, and how its threads share them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hexa.cli.declare import COMMANDS
from hexa.runtime import cores
from tests.conftest import Says


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


def test_idle_cores_are_counted_among_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cores 1 and 2 between two looks: 30 of 100 ticks idle, and 60 of 100 idle or waiting for a disk."""
    first = "cpu 9 9\ncpu0 0 0 0 0 0 0 0 0 0\ncpu1 10 0 0 50 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 7\nintr 5\n"
    second = "cpu 9 9\ncpu0 0 0 0 99 0 0 0 0 0\ncpu1 60 10 5 80 0 5 0 0 0\ncpu2 40 0 0 20 40 0 0 0 9\nintr 6\n"
    monkeypatch.setattr(cores, "allowed_cores", lambda: [1, 2])
    assert cores._idle(
        0.0, SimpleNamespace(read_text=iter((first, second)).__next__)
    ) == pytest.approx(0.9)
    assert cores._idle(0.0, Path("nowhere")) == 2.0


@pytest.mark.parametrize(
    ("command", "given", "threads"),
    [
        (["adapt", "timm:W", "--data", "digits", "--time", "1m"], None, "3"),
        (["demo"], None, "3"),
        (["adapt", "timm:W", "--data", "digits", "--time", "1m", "--max_steps", "5"], None, None),
        (["pretrain", "digits-moco-v2"], None, None),
        (["demo"], "4", "4"),
    ],
)
def test_beside_other_programs_what_ends_by_the_clock_takes_idle_cores_alone(
    monkeypatch: pytest.MonkeyPatch,
    says: Says,
    command: list[str],
    given: str | None,
    threads: str | None,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("OMP_NUM_THREADS", None)
    os.environ.update({"OMP_NUM_THREADS": given} if given else {})
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(cores, "_idle", lambda: 2.7)
    monkeypatch.setattr(cores, "_DEVICES", Path("nowhere"))
    monkeypatch.setitem(
        COMMANDS, command[0], dataclasses.replace(COMMANDS[command[0]], run=lambda given, extra: 0)
    )
    assert ("other programs use the cores" in says(*command).err) == (given is None)
    assert os.environ.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("idle", "device", "said"), [(2.7, "null", 1), (3.65, "null", 0), (2.7, "nvidia0", 0)]
)
def test_little_noise_is_no_other_program_and_a_gpu_needs_no_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, idle: float, device: str, said: int
) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    monkeypatch.setattr(cores, "_idle", lambda: idle)
    monkeypatch.setattr(cores, "_DEVICES", tmp_path)
    (tmp_path / device).touch()
    assert bool(cores.beside_others(choose=False)) == said


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
