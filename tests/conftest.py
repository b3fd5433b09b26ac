"""What every test shares: few threads, fixed seeds, and the real images some tests can use when they are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

#: Folder with cifar10/train.parquet and the like; tests that want real images skip without it.
DATA_VARIABLE = "HEXA_TEST_DATA"

torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A test that forgets a generator still gives the same figures every time."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test leaves anything in the user's folders, nor finds what another left."""
    monkeypatch.setenv("HEXA_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HEXA_CONFIG", str(tmp_path_factory.mktemp("config")))


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """real_data("cifar10/test.parquet") is that file of the folder HEXA_TEST_DATA; without it the test is skipped."""

    def find(name: str) -> Path:
        folder = os.environ.get(DATA_VARIABLE)
        if not folder:
            pytest.skip(f"{DATA_VARIABLE} names no folder of real images")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"{path} is missing")
        return path

    return find
