"""Worker processes where a container leaves them little shared memory, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hexa import cli
from tests.end_to_end.endings import metric_lines
from tests.evaluation.given import noise_images

#: What is mounted for the command alone. A part of these views takes 786,432 bytes.
SMALL = "mount -t tmpfs -o size=256k tmpfs /dev/shm"
READ_ONLY = "mount -t tmpfs -o ro tmpfs /dev/shm"
ABSENT = """
for name in null zero random urandom; do touch "$0/$name"; mount --bind "/dev/$name" "$0/$name"; done
mount --rbind "$0" /dev
"""
FULL = "shared memory (/dev/shm) is full, so workers hand images over more slowly"
NONE = "this process decodes the images, more slowly"


def inside(mounts: str, devices: Path, *words: str, seconds: float = 240) -> str:
    """Return the output of `hexa WORDS`, which must succeed, with these mounts; skip the test
    without the right to them."""
    devices.mkdir(exist_ok=True)
    script = f'set -e; {mounts}\nexec "$@"'
    begin = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(devices)]
    if shutil.which("unshare") is None:
        pytest.skip("there is no `unshare`")
    allowed = subprocess.run([*begin, "true"], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"mounting is not permitted: {allowed.stderr.strip()}")
    ended = subprocess.run(
        [*begin, sys.executable, "-m", "hexa", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return " ".join((ended.stdout + ended.stderr).split())


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """128 JPEGs of several sizes."""
    files = {f"{number:03d}.jpg": (80 + number % 5, 72) for number in range(128)}
    return noise_images(tmp_path_factory.mktemp("photographs"), files)


def training(photographs: str, out: Path, workers: int) -> list[str]:
    fields = f"--training.num_workers {workers} --epochs 1 --batch_size 64 --views.size 64"
    fields += " --network.widths [4,8] --training.log_every 1 --training.device cpu"
    recipe = f"pretrain cifar10-simclr+small --data {photographs}"
    return f"{recipe} {fields} --training.report false --out {out}".split()


@pytest.fixture(scope="module")
def expected(photographs: str, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The metrics of the training without workers and without any mount."""
    out = tmp_path_factory.mktemp("expected") / "run"
    assert cli.main(training(photographs, out, 0)) == 0
    lines = metric_lines(out, "train")
    assert len(lines) == 2
    return list(lines)


@pytest.mark.parametrize(
    ("mounts", "note"),
    [(SMALL, FULL), (READ_ONLY, NONE), (ABSENT, NONE)],
    ids=["small", "read-only", "absent"],
)
def test_little_shared_memory(
    photographs: str, tmp_path: Path, expected: list[object], mounts: str, note: str
) -> None:
    out = tmp_path / "run"
    said = inside(mounts, tmp_path / "devices", *training(photographs, out, 2))
    assert said.count(note) == 1, said
    assert metric_lines(out, "train") == expected
