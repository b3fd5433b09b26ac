"""The sharded bank in one process, and as one of several (their exchange is replaced by its result)."""

from __future__ import annotations

import pytest
import torch

from hexa.nn.memory_bank import MemoryBank
from hexa.runtime import processes
from tests.data.batches import each_process


@pytest.mark.parametrize("world", [1, 2, 3, 9])
@pytest.mark.parametrize("before", [1, 2, 4, 9])
def test_bank_shards(monkeypatch: pytest.MonkeyPatch, world: int, before: int) -> None:
    """Shards of any number of processes hold the whole, and any other number takes its rows."""
    index = torch.randperm(
        7,
        generator=torch.Generator().manual_seed(0),
    )[:6]
    rows = torch.rand(2, 6, 3)
    monkeypatch.setattr(processes, "all_gather", lambda tensor: tensor)  # as if all were gathered

    def written() -> MemoryBank:
        bank = MemoryBank(7, 2, 3)
        bank.write(index, rows)
        return bank

    whole = written().part()
    assert whole["embeddings"].shape == (2, 7, 3)
    parts = [written().part() for _ in each_process(before, monkeypatch)]
    for _ in each_process(world, monkeypatch):
        restored = MemoryBank(7, 2, 3)
        restored.seen.fill_(True)
        restored.take(*([part[name] for part in parts] for name in ("embeddings", "seen")))
        for name, value in written().part().items():
            assert torch.equal(restored.part()[name], value)
        count = max(0, min(restored.rows, 7 - restored.start))
        mine = slice(restored.start, restored.start + count)
        assert torch.equal(
            restored.part()["embeddings"][:, :count],
            whole["embeddings"][:, mine],
        )


def test_missing_rows() -> None:
    """A bank is not loaded from parts that lack rows."""
    part = MemoryBank(4, 1, 3).part()
    bank = MemoryBank(7, 1, 3)
    with pytest.raises(RuntimeError, match="4 rows for 7 images"):
        bank.take([part["embeddings"]], [part["seen"]])
