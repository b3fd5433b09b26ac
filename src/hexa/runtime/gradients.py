"""Gradients of several processes: averaged in buckets, which are sent while the last backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hexa.runtime import processes
from hexa.runtime.processes import Pending

#: Bytes of gradients that are sent together, at least.
_BUCKET = 25 * 2**20


class GradientAverage:
    """Averages the gradients of parameters over all processes, once a step (F19).

    Parameters that had a gradient in the step before are cut into buckets, in reverse order, as a backward pass reaches
    them. A bucket is sent as soon as the last backward pass of a step has its gradients (Li et al., VLDB 2020, "PyTorch
    Distributed", section 3.2). Which parameters have a gradient is agreed on between the hosts; none waits for its
    device. A missing gradient counts as zero if another process has one, and stays missing if none has. With NCCL and
    SyncBN, all processes need the same gradients, because their collectives share one order.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._buckets: list[list[nn.Parameter]] = []
        self._sent: list[Pending] = []
        self._arrived: set[nn.Parameter] = set()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send buckets during the backward pass inside the context, the last one of the step."""
        missing = [len(bucket) for bucket in self._buckets]
        place = {p: number for number, bucket in enumerate(self._buckets) for p in bucket}

        def arrived(parameter: Tensor) -> None:
            self._arrived.add(parameter)  # type: ignore[arg-type]
            if parameter in place:
                missing[place[parameter]] -= 1  # type: ignore[index]
            # in the same order on every process
            while len(self._sent) < len(missing) and not missing[len(self._sent)]:
                self._send()

        learning = [p for p in self.parameters if p.requires_grad and processes.world_size() > 1]
        handles = [p.register_post_accumulate_grad_hook(arrived) for p in learning]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Send what is left, and wait until every gradient is the mean over all processes."""
        if processes.world_size() == 1:
            return
        # 0: no process has a gradient; 1: some has; 2: the last backward pass brought it
        here = [(p.grad is not None) + (p in self._arrived) for p in self.parameters]
        while len(self._sent) < len(self._buckets):
            self._send()
        for pending in self._sent:
            pending.wait()
        anywhere = processes.host_max(here)
        known = {p for bucket in self._buckets for p in bucket}
        late = []
        for parameter, state in zip(self.parameters, anywhere, strict=True):
            if not state:
                parameter.grad = None
            elif parameter not in known:
                late.append(_gradient(parameter))
        processes.average(late)
        self._sent = []
        self._arrived = set()
        self._buckets = _in_buckets(self.parameters, anywhere)

    def _send(self) -> None:
        gradients = [_gradient(parameter) for parameter in self._buckets[len(self._sent)]]
        self._sent.append(Pending(gradients))


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of these parameters over all processes, after the last backward pass."""
    GradientAverage(parameters).finish()


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter, zeros if it has none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _in_buckets(parameters: list[nn.Parameter], states: list[int]) -> list[list[nn.Parameter]]:
    """Parameters with a gradient in reverse order; those that the last backward pass does not reach come last."""
    pairs = [(state, p) for p, state in zip(parameters, states, strict=True) if state]
    pairs.sort(key=lambda pair: pair[0])
    buckets: list[list[nn.Parameter]] = []
    room = 0
    before = 0
    for state, parameter in reversed(pairs):
        if room <= 0 or state != before:
            buckets.append([])
            room = _BUCKET
        buckets[-1].append(parameter)
        room -= parameter.nbytes
        before = state
    return buckets
