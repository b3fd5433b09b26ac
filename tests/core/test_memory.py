"""Peak memory of work whose peak can be computed by hand."""

from __future__ import annotations

import torch

from benchmarks.memory import peak_bytes

CPU = torch.device("cpu")
MIB = 2**20


def test_peak_bytes_live_tensors() -> None:
    """The peak counts the tensors that exist at the same time."""
    standing = torch.zeros(MIB // 4)

    def work() -> None:
        first = torch.ones(MIB)  # 4 MiB
        second = first * 2  # 8 alive
        del first
        third = second + 1  # 8 again
        del second, third
        torch.ones(MIB // 2)  # 2

    assert peak_bytes(work, CPU, [standing]) == 9 * MIB


def test_peak_bytes_autograd() -> None:
    """Tensors that autograd keeps count; earlier tensors do not."""
    weight = torch.ones(MIB // 4, requires_grad=True)

    def work() -> None:
        y = weight.sin()  # 1 MiB
        z = y.exp().cos()  # exp and cos: 3 alive, of which exp is kept when y goes
        del y
        z.sum()

    assert peak_bytes(work, CPU, []) == 3 * MIB
