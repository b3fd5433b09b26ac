"""Common behaviour of all sources: fingerprints for runs and caches, and valid labels."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hexa.data import ArraySource, open_source
from tests.data.sources.test_opening import write_parquet
from tests.data.sources.test_torchvision_sets import caltech101
from tests.data.sources.test_voc import kit
from tests.data.sources.test_webdataset import pack


def bitmap(value: int) -> bytes:
    """Return a picture whose size in bytes does not depend on its content."""
    return b"BM" + bytes([value]) * 100


def folder(root: Path, values: dict[str, int]) -> Path:
    for name, value in values.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bitmap(value))
    return root


def many(root: Path, count: int = 500) -> Path:
    return folder(
        root, {f"{'ab'[number % 2]}/{number:03d}.bmp": number % 250 for number in range(count)}
    )


def in_folder(root: Path, value: int) -> str:
    return f"folder:{folder(root, {'a/1.bmp': value, 'b/2.bmp': value})}"


def in_tar(root: Path, value: int) -> str:
    root.mkdir(parents=True)
    pack(
        root / "a.tar",
        {"1.bmp": bitmap(value), "1.cls": b"0", "2.bmp": bitmap(value), "2.cls": b"1"},
    )
    return f"webdataset:{root}"


def in_voc(root: Path, value: int) -> str:
    kit(root)
    for image in (root / "VOCdevkit" / "VOC2007" / "JPEGImages").iterdir():
        image.write_bytes(bitmap(value))
    return f"voc:{root}/VOCdevkit"


def in_set(root: Path, value: int) -> str:
    caltech101(root)
    for image in root.rglob("*.jpg"):
        image.write_bytes(bitmap(value))
    return f"caltech101:{root}"


def in_parquet(root: Path, value: int) -> str:
    write_parquet(root / "train.parquet", [value], [0])
    return f"parquet:{root}"


@pytest.mark.parametrize("made", [in_folder, in_tar, in_voc, in_set, in_parquet])
def test_fingerprint_contents(tmp_path: Path, made: Callable[[Path, int], str]) -> None:
    """Other contents under the same names and sizes are other images; times of files do not count."""
    specs = [made(tmp_path / str(number), value) for number, value in enumerate((7, 7, 8))]
    for file in open_source(specs[1]).files():
        os.utime(file, ns=(0, 0))
    one, same, other = (open_source(spec).fingerprint for spec in specs)
    assert one == same != other


def test_of_many_files_a_sample_is_hashed(tmp_path: Path) -> None:
    root = many(tmp_path / "x")
    before = open_source(f"folder:{root}")
    (root / "b" / "003.bmp").write_bytes(bitmap(251))
    after = open_source(f"folder:{root}")
    assert before.fingerprint == after.fingerprint, "the 252nd of 500 is not looked into"
    folder(root, {f"{'ab'[number % 2]}/{number:03d}.bmp": 252 for number in range(100, 200)})
    assert before.fingerprint != open_source(f"folder:{root}").fingerprint


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (in_folder, "39d4ae14cfaafa9d"),
        (in_tar, "def1ec3f8916ad95"),
        (in_voc, "5f0a03a872ca3b2b"),
        (in_set, "356306fe10978e6a"),
    ],
)
def test_stored_fingerprints(
    tmp_path: Path, made: Callable[[Path, int], str], expected: str
) -> None:
    """Fingerprints stay those that stored results name."""
    assert open_source(made(tmp_path / "x", 7)).fingerprint == expected


IMAGES = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)


@pytest.mark.parametrize(("labels", "unlabelled"), [([0, -1, 2, -5], 2), ([-1, -1, -1, -1], 0)])
def test_negative_labels(labels: list[int], unlabelled: int) -> None:
    """Negative labels are hidden ones."""
    source = ArraySource(IMAGES, np.array(labels), ["a", "b", "c"])
    assert source.labels is None
    assert source.unlabelled == unlabelled
    assert source.class_names == ["a", "b", "c"]
