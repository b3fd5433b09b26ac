"""Processes and devices that the environment announces and that are not there: one line, no traceback."""

from __future__ import annotations

import pytest
import torch

from hexa.config import UserError
from hexa.runtime import processes
from hexa.runtime.precision import pick_device


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:3"])
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(UserError, match="'cuda:3' is not there: 2 GPUs are seen; start at most 2 processes"):
        pick_device(name)


def test_a_number_of_processes_without_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="environment variable RANK expected, but not set; start with torchrun"):
        processes.initialize(torch.device("cpu"))
