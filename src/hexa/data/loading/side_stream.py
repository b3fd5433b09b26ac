"""A second CUDA stream, on which a batch is made while the step before computes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hexa.core.batch import Batch


class SideStream:
    """Makes the batches of a loop that asks for the next batch as soon as it has launched a step.

    On a GPU, the copies and views of a batch run at the same time as that step, in memory of their own. The host waits
    until the step before has ended, so that few batches are in memory. On other devices, everything runs in order.
    """

    def __init__(self, device: torch.device) -> None:
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._step: torch.cuda.Event | None = None

    def batch(self, make: Callable[[], Batch]) -> tuple[Batch, float]:
        """Return make(), and the seconds that the loop waited for it: 0 if a GPU was busy with the step meanwhile."""
        begin = time.perf_counter()
        if self._side is None:
            return make(), time.perf_counter() - begin
        current = torch.cuda.current_stream(self._side.device)
        if self._step is None:
            self._side.wait_stream(current)  # images may still be on their way to the device
        else:
            self._step.synchronize()
        self._step = current.record_event()
        begin = time.perf_counter()
        with torch.cuda.stream(self._side):
            batch = make()
        idle = self._step.query()
        seconds = time.perf_counter() - begin if idle else 0.0
        current.wait_stream(self._side)
        for tensor in (*batch.crops, batch.index):
            tensor.record_stream(current)  # its memory stays until the step has read it
        return batch, seconds
