"""A small run on the digits, and whether another one that was harmed ended exactly where it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hexa.runtime import checkpoints
from hexa.training.journal import METRICS
from hexa.weights.pretrained import load_backbone

RECIPE = "digits-hexa-moco"
STEPS = 30
#: Fields of a run that only trains, on the CPU.
ALONE: dict[str, Any] = {
    "training.device": "cpu",
    "training.precision": "fp32",
    "training.report": False,
}
ALONE |= {"training.tensorboard": False, "monitor.knn_every": 0}
FIELDS = ALONE | {
    "epochs": 3,
    "batch_size": 128,
    "views.size": 8,
    "network.widths": [4, 8],
    "method.queue_size": 256,
}
FIELDS |= {"training.log_every": 1, "training.checkpoint_every_steps": 4}
#: What depends on the clock.
TIMES = {"seconds", "images_per_second", "data_wait", "time"}


def options(**changes: Any) -> list[str]:
    """The fields as a command line has them. changes: with __ for the dots."""
    fields = FIELDS | {name.replace("__", "."): value for name, value in changes.items()}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
    }
    return [f"--{name}={text}" for name, text in texts.items()]


def metric_lines(folder: Path, *events: str) -> list[dict[str, Any]]:
    """The lines of the journal that should be the same however often the run was stopped."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    wanted = events or ("train", "monitor")
    return [
        {k: v for k, v in line.items() if k not in TIMES}
        for line in lines
        if line["event"] in wanted
    ]


def assert_same_end(folder: Path, whole: Path) -> None:
    """Weights, optimizer, everything remembered, every metric and the backbone are those of the run `whole`."""
    assert difference(folder, whole) is None


def difference(folder: Path, whole: Path) -> str | None:
    """In what a run that was harmed ended other than the run `whole`; None if in nothing."""
    said: list[str] = []
    found = [checkpoints.newest_good(run / "checkpoints", said.append) for run in (folder, whole)]
    if said or None in found:
        return f"checkpoints: {said}"
    (_, ended), (_, expected) = (one for one in found if one is not None)
    for name in ("step", "world_size", "steps_per_epoch", "fingerprint"):
        if ended[name] != expected[name]:
            return f"{name}: {ended[name]}, not {expected[name]}"
    for name, value in expected["method"].items():
        if checkpoints.checksum(ended["method"][name]) != checkpoints.checksum(value):
            return name
    for part in ("method", "optimizer", "watch"):
        if checkpoints.checksum(ended[part]) != checkpoints.checksum(expected[part]):
            return part
    lines = [metric_lines(run) for run in (folder, whole)]
    if lines[0] != lines[1]:
        return f"metrics: {lines[0]}, not {lines[1]}"
    if load_backbone(folder).content_hash() != load_backbone(whole).content_hash():
        return "backbone"
    left = sorted(path.name for path in folder.rglob(".*"))
    return f"left behind: {left}" if left else None
