"""Shared parts of evaluation tests: options, a small network, and a task for any backbone and
images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hexa.data import Source
from hexa.evaluation.protocol import Task
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import Backbone

QUIET: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
SMALL = NetworkConfig(name="small-resnet", widths=(4, 8))


def task_of(
    backbone: Backbone,
    fit: Source,
    test: Source,
    names: tuple[str, ...] = ("0", "1", "2"),
    **more: Any,
) -> Task:
    """On the CPU, in fp32, from seed 0, unless `more` says otherwise."""
    how: dict[str, Any] = {
        "device": torch.device("cpu"),
        "precision": "fp32",
        "num_workers": 0,
        "seed": 0,
    }
    how |= {"extraction_batch": 16}
    return Task(backbone, fit, test, list(names), **how | more)


def noise_images(folder: Path, files: dict[str, tuple[int, int]]) -> str:
    """A source of images of noise. files: {path: (width, height)}."""
    generator = np.random.default_rng(0)
    for name, (width, height) in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(
            folder / name
        )
    return f"folder:{folder}"


def plain_images(folder: Path, files: dict[str, tuple[int, int]]) -> str:
    """A source of images of one shade each, brighter from file to file. files: {path: (width, height)}."""
    for number, (name, size) in enumerate(files.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (20 * number,) * 3).save(folder / name)
    return f"folder:{folder}"
