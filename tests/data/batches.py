"""Loaders of a few images, and what their batches have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.core import Batch
from hexa.data import ArraySource, Source, open_source
from hexa.data.loading.loaders import PretrainLoader
from hexa.data.views.config import ViewsConfig
from hexa.data.views.making import Views
from hexa.runtime import processes
from hexa.runtime.random import Stream

SIZE = 16
SMALL = (
    {"count": 3, "size": 9, "scale": (0.05, 0.2)},
    {"count": 1, "size": 12, "scale": (0.2, 0.2)},
)


def photographs(folder: Path, count: int = 50, broken: tuple[int, ...] = ()) -> Source:
    """Noise of different sizes in folder / "photographs", among it files that are not images."""
    folder = folder / "photographs"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number:03d}.png"
        height, width = generator.integers(20, 60, 2)
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        if number in broken:
            path.write_bytes(b"broken")
    return open_source(f"folder:{folder}")


def flat(
    folder: Path,
    count: int,
    broken: tuple[int, ...] = (),
    one_size: bool = True,
) -> Source:
    """Images of one grey each, ten times their position."""
    for number in range(count):
        size = (9, 9 if one_size else 9 + number // 2 % 2)
        Image.new("RGB", size, (number * 10,) * 3).save(folder / f"{number:02d}.png")
        if number in broken:
            (folder / f"{number:02d}.png").write_bytes(b"broken")
    return open_source(f"folder:{folder}")


def array(count: int = 50) -> ArraySource:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 3, 12, 12), dtype=np.uint8)
    return ArraySource(torch.from_numpy(images), np.arange(count) % 3)


def loader_of(
    source: Source, batch_size: int = 16, seed: int = 0, **options: Any
) -> PretrainLoader:
    """A loader without workers; options are of it and of the views."""
    of_views = {"recipe", *ViewsConfig.model_fields} & options.keys()
    fields = {name: options.pop(name) for name in of_views}
    views = Views(ViewsConfig.model_validate({"recipe": "moco-v2", "size": SIZE} | fields))
    options.setdefault("num_workers", 0)
    return PretrainLoader(source, views, batch_size, Stream(seed), **options)


def same(left: Batch, right: Batch) -> bool:
    pairs = zip((*left.crops, left.index), (*right.crops, right.index), strict=True)
    where = (left.stream, left.step) == (right.stream, right.step)
    return where and all(torch.equal(a, b) for a, b in pairs)


def assert_share(
    ours: Batch,
    whole: Batch,
    rows: slice,
    atol: float = 1e-6,
) -> None:
    """A process's batch is its rows of the global one."""
    assert torch.equal(ours.index, whole.index[rows])
    assert ours.stream == whole.stream
    for left, right in zip(ours.crops, whole.crops, strict=True):
        torch.testing.assert_close(left, right[rows], atol=atol, rtol=0)


def each_process(world: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """One process of `world` after the other."""
    monkeypatch.setattr(processes, "world_size", lambda: world)
    for rank in range(world):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        yield rank
