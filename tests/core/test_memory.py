"""Peak memory of work whose peak can be computed by hand."""

from __future__ import annotations

import torch

from benchmarks.memory import peak_bytes

MIB = 2**20


def test_peak_bytes() -> None:
    """Standing tensors and those that exist or that autograd keeps at the same time count."""
    standing = torch.zeros(MIB // 4)  # 1 MiB
    weight = torch.ones(MIB // 4, requires_grad=True)

    def work() -> None:
        y = weight.sin()  # 1 MiB
        z = y.exp().cos()  # exp and cos: 3 alive, of which exp is kept when y goes
        del y
        torch.ones(MIB // 2)  # 4 alive
        z.sum()

    assert peak_bytes(work, torch.device("cpu"), [standing]) == 5 * MIB
