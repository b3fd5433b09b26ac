"""Real processes, killed with -9 at random steps and resumed until they are done, end where an unharmed one does."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.nn.pretrained import load_backbone
from hexa.runtime import checkpoints
from hexa.training.journal import METRICS

FIELDS = {
    "--epochs": "3",
    "--batch-size": "128",
    "--views.size": "8",
    "--network.widths": "[4,8]",
    "--method.queue-size": "256",
    "--training.log-every": "1",
    "--training.checkpoint-every-steps": "4",
    "--training.device": "cpu",
    "--training.precision": "fp32",
    "--training.report": "false",
    "--training.tensorboard": "false",
    "--monitor.knn-every": "0",
}
TIMES = {"seconds", "images_per_second", "data_wait", "time"}


def hexa(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "hexa", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pretrain(out: Path) -> subprocess.Popen[str]:
    return hexa("pretrain", "digits-hexa-moco", "--out", str(out), *(word for pair in FIELDS.items() for word in pair))


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=300)
    return process.returncode, said.replace("\n", "")


def train_lines(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines if line["event"] == "train"]


def last_state(folder: Path) -> dict[str, Any]:
    found = checkpoints.newest_good(folder / "checkpoints", pytest.fail)
    assert found is not None
    return found[1]


def strike(process: subprocess.Popen[str], folder: Path, step: int, number: signal.Signals) -> None:
    """Send a signal once the journal shows a step; the process goes on meanwhile, so it is hit somewhere after."""
    journal = folder / METRICS
    while process.poll() is None:
        if journal.exists() and f'"step": {step},' in journal.read_text():
            process.send_signal(number)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill") / "whole"
    code, said = finished(pretrain(folder))
    assert code == 0, said
    return folder


def assert_same_end(folder: Path, whole: Path) -> None:
    ended, expected = last_state(folder), last_state(whole)
    assert ended["step"] == expected["step"] == 30
    for part in ("method", "optimizer"):
        assert checkpoints.checksum(ended[part]) == checkpoints.checksum(expected[part])
    for name, value in expected["method"].items():
        assert torch.equal(ended["method"][name], value), name
    assert train_lines(folder) == train_lines(whole)
    assert load_backbone(folder).content_hash() == load_backbone(whole).content_hash()


def test_killed_at_random_steps_and_resumed(tmp_path: Path, whole: Path) -> None:
    """… the second time with the newest checkpoint cut short as well, which is passed over, and said."""
    first, second = sorted(random.Random(0).sample(range(9, 27), 2))
    folder = tmp_path / "run"
    process = pretrain(folder)
    strike(process, folder, first, signal.SIGKILL)
    code, said = finished(process)
    assert code == -signal.SIGKILL, said
    process = hexa("resume", str(folder))
    strike(process, folder, second, signal.SIGKILL)
    code, said = finished(process)
    assert code == -signal.SIGKILL, said
    kept = checkpoints.checkpoints(folder / "checkpoints")
    assert len(kept) == 2
    kept[-1].write_bytes(kept[-1].read_bytes()[:-100])
    code, said = finished(hexa("resume", str(folder)))
    assert code == 0, said
    assert kept[-1].name in said
    assert_same_end(folder, whole)


def test_asked_to_stop_it_saves_and_says_how_to_go_on(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    process = pretrain(folder)
    strike(process, folder, 2, signal.SIGTERM)
    code, said = finished(process)
    assert code == 143, said
    assert f"hexa resume {folder}" in said
    assert "Traceback" not in said
    code, said = finished(hexa("resume", str(folder)))
    assert code == 0, said
    assert_same_end(folder, whole)
