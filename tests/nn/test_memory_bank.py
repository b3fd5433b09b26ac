"""The sharded bank in one process, and as one of several (their exchange is replaced by its result)."""

from __future__ import annotations

import pytest
import torch

from hexa.nn.memory_bank import MemoryBank
from hexa.runtime import processes
from tests.data.batches import each_process


def test_bank_rows_and_forgetting() -> None:
    """Rows belong to their images; `forget` only clears the marks of seen images."""
    bank = MemoryBank(6, 2, 3)
    rows = torch.arange(12.0).view(2, 2, 3)
    bank.write(torch.tensor([4, 1]), rows)
    for crop in (0, 1):
        embeddings, seen = bank.crop(crop)
        assert embeddings.shape == (6, 3)
        assert seen.tolist() == [False, True, False, False, True, False]
        assert torch.equal(embeddings[[4, 1]], rows[crop])
    bank.forget()
    assert not bool(bank.crop(0)[1].any())
    assert torch.equal(bank.crop(1)[0][4], rows[1, 0])


@pytest.mark.parametrize("world", [1, 2, 3, 9])
@pytest.mark.parametrize("before", [1, 2, 4, 9])
def test_bank_shards(monkeypatch: pytest.MonkeyPatch, world: int, before: int) -> None:
    """Shards of any number of processes hold the whole, and any other number takes its rows."""
    index = torch.randperm(7, generator=torch.Generator().manual_seed(0))[:6]
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
        assert torch.equal(restored.part()["embeddings"][:, :count], whole["embeddings"][:, mine])
        again = MemoryBank(7, 2, 3)
        again.take(whole["embeddings"], whole["seen"])  # of one process
        for name, value in restored.part().items():
            assert torch.equal(again.part()[name], value)


def test_missing_rows() -> None:
    """A bank is not loaded from parts that lack rows."""
    part = MemoryBank(4, 1, 3).part()
    bank = MemoryBank(7, 1, 3)
    with pytest.raises(RuntimeError, match="4 rows for 7 images"):
        bank.take([part["embeddings"]], [part["seen"]])
