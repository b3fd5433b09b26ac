"""A small method of any kind in fp64, and batches for it."""

from __future__ import annotations

from typing import Any

import torch

from hexa.core import Batch, MethodConfig, Setting
from hexa.nn.backbones import NetworkConfig, build
from hexa.runtime.random import Stream

DATA = 16
BATCH = 4


def small(config: MethodConfig, num_crops: int = 2, data_size: int = DATA, **setting: Any) -> Any:
    """Return the method around a narrow ResNet, with seeded weights; with two streams if the
    setting says so."""
    torch.manual_seed(0)
    streams = setting.get("streams", "one")
    network = build(
        NetworkConfig.model_validate({"name": "small-resnet", "widths": (4, 8), "streams": streams})
    )
    return config.build(network, Setting(data_size, BATCH, num_crops=num_crops, **setting)).double()


def batch(*sizes: int, step: int = 0) -> Batch:
    """Seeded crops of these sizes."""
    stream = Stream(1).child(step)
    generator = stream.generator()
    crops = tuple(
        torch.rand(BATCH, 3, size, size, generator=generator, dtype=torch.float64) for size in sizes
    )
    return Batch(crops, torch.randperm(DATA, generator=generator)[:BATCH], stream, step)
