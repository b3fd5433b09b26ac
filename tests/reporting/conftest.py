"""Run folders written from the schema alone, so that reports are tested without training."""

from __future__ import annotations

import functools
import json
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hexa.reporting.pictures import Gallery
from hexa.reporting.runs import Run, read_run
from hexa.reporting.style import save

MakeRun = Callable[..., Path]


def write_run(
    folder: Path, *, seed: int = 0, epochs: int = 30, finished: bool = True, **fields: Any
) -> Path:
    """A run of MoCo with adversarial and cut-mixed views whose curves are made up."""
    folder.mkdir(parents=True)
    config = {
        "recipe": "digits-hexa-moco",
        "data": "digits",
        "seed": seed,
        "epochs": epochs,
        "batch_size": 128,
        "method": {"name": "moco", "temperature": 0.2, "queue_size": 1280},
        "hard_examples": {
            "adversarial": {"kind": "adversarial", "weight": 1.0, "source": "std", "epsilon": 1.0},
            "cutmix": {"kind": "cutmix", "weight": 0.5, "source": "std", "alpha": 5.0},
        },
        "optimizer": {"learning_rate": 0.06},
        **fields,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    environment = {
        "device": "Some CPU",
        "precision": "fp32",
        "versions": {"torch": "2.15.0"},
        "processes": 1,
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    draw = random.Random(seed)
    terms = ["std", *config["hard_examples"]]
    lines: list[dict[str, Any]] = [
        {"event": "start", "step": 0, "time": "2026-01-02T03:04:05+00:00"}
    ]
    last = epochs if finished else epochs // 2
    for step in range(5, 10 * last + 1, 5):
        decay = math.exp(-step / 90)
        line: dict[str, Any] = {
            "event": "train",
            "step": step,
            "epoch": step / 10,
            "seconds": step * 0.31,
        }
        for number, term in enumerate(terms):
            line[f"loss/{term}"] = 4.2 + 0.5 * number + 2.6 * decay
            line[f"accuracy/{term}"] = 0.7 - 0.6 * decay
        line["loss"] = sum(line[f"loss/{term}"] for term in terms)
        line |= {"perturbation/adversarial": 0.9, "zero_gradient/adversarial": 0.02}
        line |= {"lambda/cutmix": 0.74, "learning_rate": 0.03 * decay}
        line["data_wait"] = 0.011
        lines.append(line)
        if step % 50 == 0:
            lines.append(line | {"event": "monitor", "knn": 97 - 30 * decay})
    lines.append(
        {
            "event": "end" if finished else "interrupted",
            "step": 10 * last,
            "time": "2026-01-02T03:09:05+00:00",
        }
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        results = [
            _result(
                "knn/k200-t0.07", "default", {"top1": 96.4 + draw.gauss(0, 0.4), "top5": 99.5}, seed
            ),
            _result(
                "linear/moco",
                "moco",
                {"top1": 97.1 + draw.gauss(0, 0.4), "top1_last": 96.9, "top5": 99.8},
                seed,
            ),
        ]
        (folder / "results.json").write_text(json.dumps(results))
    (folder / "gallery.png").write_bytes(drawn_gallery())
    return folder


def _result(protocol: str, preset: str, metrics: dict[str, float], seed: int) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "preset": preset,
        "metrics": metrics,
        "data": "digits",
        "seed": seed,
    }


@functools.cache
def drawn_gallery() -> bytes:
    """The file of a made-up gallery, which is drawn once."""
    draw = np.random.default_rng(0)
    tiles = draw.integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    delta = draw.choice(np.array([64, 128, 192], dtype=np.uint8), tiles.shape)
    mixed = tiles.copy()
    mixed[:, 2:9, 4:12] = np.roll(tiles, 1, 0)[:, 2:9, 4:12]
    captions = [("", f"mean |δ| 0.9{number}", "", "λ = 0.78") for number in range(5)]
    heads = ("view", "perturbation × 64", "adversarial", "cutmix")
    made = Gallery(np.stack([tiles, delta, tiles, mixed], 1), heads, captions)
    with tempfile.TemporaryDirectory() as folder:
        return save(made.draw(), Path(folder) / "gallery.png").read_bytes()


def append(folder: Path, *lines: dict[str, Any]) -> None:
    """Further lines for the journal of a run."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def run_with(folder: Path, *results: dict[str, Any]) -> Run:
    """A run as it is read with these results instead of its own."""
    (folder / "results.json").write_text(json.dumps(results))
    return read_run(folder)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run("name", seed=…, finished=…, any config field=…) -> a run folder."""

    def make(name: str = "run", **options: Any) -> Path:
        return write_run(tmp_path / name, **options)

    return make
