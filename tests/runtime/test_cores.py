"""What this process may use, as control groups tell, and what others use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hexa.runtime import cores, doctor, precision


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, [1.5]),
        ("0::/\n", {"cpu.max": "max 100000"}, []),
        ("0::/jobs/one\n", {"jobs/cpu.max": "200000 100000", "jobs/one/cpu.max": "max 100000"}, [2.0]),
        ("3:cpu,cpuacct:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, [0.5]),
        ("3:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, []),
        ("5:memory:/a\n", {"cpu.max": "150000 100000"}, []),
        ("0::/gone\n", {"cpu.max": "damaged"}, []),
    ],
)
def test_quotas_of_containers(tmp_path: Path, own: str, files: dict[str, str], expected: list[float]) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = cores._quotas(tmp_path / "groups", tmp_path / "own")
    assert [quota for quota in found if quota < 1000] == expected


def test_threads_are_limited_to_a_quota_and_never_against_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "allowed_cores", lambda: list(range(64)))
    monkeypatch.setattr(cores, "_quotas", lambda: iter([float("inf")]))
    cores.limit_threads()
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setattr(cores, "_quotas", lambda: iter([2.5]))
    cores.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    cores.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("cores_there", "used", "threads", "advised"),
    [
        (2, 0.1, 2, None),
        (2, 1.0, 2, "=1 "),
        (2, 4.0, 2, "=1 "),
        (2, 4.0, 1, None),
        (16, 12.0, 16, "=4 "),
        (16, 4, 8, None),
    ],
)
def test_a_busy_machine_is_told_with_a_number_that_fits(
    monkeypatch: pytest.MonkeyPatch, cores_there: int, used: float, threads: int, advised: str | None
) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: list(range(cores_there)))
    monkeypatch.setattr(cores, "_used_by_others", lambda seconds: used)
    found = cores.crowding(threads)
    assert (found is None) == (advised is None)
    if found is not None and advised is not None:
        assert f"OMP_NUM_THREADS{advised}" in found[1]
        monkeypatch.setattr("torch.get_num_threads", lambda: threads)
        finding = next(doctor._processor())
        assert (finding.status, finding.remedy) == ("warning", found[1])


def test_a_run_says_so_where_it_computes_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "crowding", lambda threads: ("others use 2.0 cores", "set OMP_NUM_THREADS=1"))
    said = "this machine is busy, others use 2.0 cores; set OMP_NUM_THREADS=1"
    assert precision.crowded(torch.device("cpu")) == [said]
    assert precision.crowded(torch.device("cuda")) == []


def test_what_others_use_is_measured() -> None:
    assert 0 <= cores._used_by_others(0.05) <= len(cores.allowed_cores()) + 0.5
