"""Shared set-up of all tests: few threads, fixed seeds, and real images if they are available."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported, and for the processes that tests start: the suite itself runs in several processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hexa.cli import main

#: Folder with cifar10/train.parquet and the like; tests that want real images skip without it.
DATA_VARIABLE = "HEXA_TEST_DATA"
#: The fixture `says`.
Says = Callable[..., Any]


def pytest_collection_finish() -> None:
    """Freeze the objects imported so far: later garbage collections need not visit them."""
    import torch  # not above: the process that only distributes tests starts without it

    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        # oneDNN's AVX2 backward of a 1×1 convolution with stride 2 writes outside its memory where there are fewer than
        # 8 input channels (torch 2.15), as in the smallest networks of these tests. Read at its first use.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX")
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain of what is not collected at the end


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed the global generators, so that a test without its own generator gives the same numbers
    every time."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def _users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder for each test. (tmp_path_factory.mktemp would look through those of all tests before.)"""
    return map(tmp_path_factory.mktemp("users").joinpath, map(str, count()))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, _users: Iterator[Path]) -> None:
    """Use separate cache folders: tests neither write to the user's folders nor see files of other
    tests."""
    user = next(_users)
    for name in ("cache", "config"):
        (user / name).mkdir(parents=True)
        monkeypatch.setenv(f"HEXA_{name.upper()}", str(user / name))


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """says("embed FILE …") runs that command here, which has to end with `status`: what it wrote, as .out and .err.

    Words with spaces follow as further arguments.
    """

    def run(line: str, *words: object, status: int = 0) -> Any:
        assert main([*line.split(), *map(str, words)]) == status
        return capsys.readouterr()

    return run


@pytest.fixture
def hears_hang_ups() -> Iterator[None]:
    """Give SIGHUP its default effect here and in processes that the test starts, even under
    nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the embedded digits by half of them, for tests in which images do not matter."""
    from sklearn.datasets import load_digits

    every = load_digits(return_X_y=True)
    monkeypatch.setattr(
        "sklearn.datasets.load_digits", lambda **_: tuple(values[::2] for values in every)
    )
