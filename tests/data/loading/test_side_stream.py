"""Batches on a stream of their own, with stand-ins that note what a GPU would do, in order."""

from __future__ import annotations

from unittest.mock import MagicMock, call

import pytest
import torch

from hexa.core import Batch
from hexa.data.loading.side_stream import SideStream
from hexa.runtime.random import Stream

CUDA = torch.device("cuda")
BATCH = Batch((torch.rand(2, 3, 4, 4),), torch.arange(2), Stream(0), 7)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Two streams, `main` and `side`, and events; the calls of all of them are in one list."""
    gpu = MagicMock()
    gpu.make.return_value = BATCH
    gpu.main.record_event.side_effect = [gpu.first, gpu.second]
    gpu.first.query.return_value = False
    gpu.second.query.return_value = False
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: gpu.side)
    monkeypatch.setattr(torch.cuda, "stream", gpu.inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpu.main)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *given: gpu.used(*given))
    return gpu


def names(gpu: MagicMock) -> str:
    return " ".join(name for name, _, _ in gpu.mock_calls)


def test_order(gpu: MagicMock) -> None:
    """A batch waits for no step, a step for its batch, and the host for the last step but one."""
    side = SideStream(CUDA)
    made = "main.record_event inside inside().__enter__ make inside().__exit__"
    ended = "main.wait_stream used used"
    for begin, event in (("side.wait_stream", "first"), ("first.synchronize", "second")):
        gpu.reset_mock()
        side.batch(gpu.make)
        assert names(gpu) == f"{begin} {made} {event}.query {ended}"
        gpu.inside.assert_called_with(gpu.side)
        gpu.main.wait_stream.assert_called_with(gpu.side)
        assert gpu.used.call_args_list == [
            call(tensor, gpu.main) for tensor in (*BATCH.crops, BATCH.index)
        ]


@pytest.mark.parametrize("ends", [False, True])
def test_waiting(gpu: MagicMock, ends: bool) -> None:
    """The making of a batch counts as waiting only if the step before has ended in the meantime."""
    gpu.first.query.return_value = ends
    _, seconds = SideStream(CUDA).batch(gpu.make)
    assert (seconds > 0) is ends


def test_other_devices(gpu: MagicMock) -> None:
    """There is no stream; all making is waiting."""
    batch, seconds = SideStream(torch.device("cpu")).batch(gpu.make)
    assert names(gpu) == "make"
    assert batch is BATCH
    assert seconds > 0
