"""benchmarks/gpu.sh, all of it on the CPU and small: it runs, tells what it measured, and fails loudly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(out: Path, **variables: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what was printed, and gpu.json."""
    environment = {
        **os.environ,
        "SMALL": "1",
        "EPOCHS": "1",
        "PYTHON": sys.executable,
        "DATA": "digits",
    }
    environment |= {
        "OUT": str(out),
        "PATIENCE": "20",
        "SECONDS_IN_ALL": "3600",
        "CUDA_VISIBLE_DEVICES": "",
    }
    script = ["bash", ROOT / "benchmarks/gpu.sh"]
    done = subprocess.run(script, env=environment | variables, capture_output=True, text=True)
    result = out / "gpu.json"
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads(result.read_text()) if result.exists() else {},
    )


@pytest.mark.slow
def test_all_of_it_runs(tmp_path: Path) -> None:
    status, said, result = run(tmp_path / "out")
    assert status == 0, said
    assert result["failed"] == []
    trainings = {"training-digits-moco-v2", "training-digits-moco-v2+adversarial"}
    assert (
        result["parts"].keys()
        == {"tests", "bf16", "fp32", "dcluster", "others", "views"} | trainings
    )
    parts = result["parts"]
    assert all(
        set(parts[name]["measured"]["schemes"]) >= {"std", "std+adv"}
        for name in ("bf16", "fp32", "dcluster")
    )
    assert (parts["bf16"]["measured"]["precision"], parts["fp32"]["measured"]["precision"]) == (
        "bf16",
        "fp32",
    )
    assert int(parts["tests"]["measured"]["tests"]) > 100
    assert parts["others"]["measured"]["ratios"]["hexa step / bare loop"] > 0
    assert parts["others"]["measured"]["ratios"]["memory, hexa step / bare loop"] > 0
    assert parts["views"]["measured"]["views_per_second"]["moco-v2"] > 0
    for name in trainings:
        assert all(
            parts[name][protocol]["protocol"].startswith(f"{protocol}/")
            for protocol in ("knn", "linear")
        )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "gpu-logs.tar.gz",
        "gpu.json",
    ]
    with tarfile.open(tmp_path / "out" / "gpu-logs.tar.gz") as logs:
        names = logs.getnames()
    assert {"tests.log", "runs/digits-moco-v2/metrics.jsonl"} <= set(names)


@pytest.mark.slow
def test_a_part_that_fails_or_takes_too_long_is_named(tmp_path: Path) -> None:
    status, said, result = run(
        tmp_path / "out", PARTS="trainings views", RECIPES="digits-moco-v3", SECONDS_IN_ALL="5"
    )
    assert status == 1
    assert "training-digits-moco-v3" in result["failed"]
    assert "failed: " in said
    assert result["parts"]["views"]["timed_out"]


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    status, said, _ = run(tmp_path / "out", PARTS="everything")
    assert status == 2
    assert "unknown part everything" in said
