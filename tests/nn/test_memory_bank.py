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


@pytest.mark.parametrize("world", [2, 3])
def test_bank_shards(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    """Shards of any number of processes hold the whole."""
    index = torch.randperm(7, generator=torch.Generator().manual_seed(0))[:6]
    rows = torch.rand(2, 6, 3)
    alone = MemoryBank(7, 2, 3)
    alone.write(index, rows)
    whole = alone.whole()
    assert whole["embeddings"].shape == (2, 7, 3)
    for _ in each_process(world, monkeypatch):
        monkeypatch.setattr(
            processes, "all_gather", lambda tensor: tensor
        )  # as if all had been gathered
        bank = MemoryBank(7, 2, 3)
        restored = MemoryBank(7, 2, 3)
        bank.write(index, rows)
        restored.take(whole["embeddings"], whole["seen"])
        count = max(0, min(bank.rows, 7 - bank.start))
        for crop in (0, 1):
            mine, seen = bank.crop(crop)
            assert torch.equal(
                mine[:count], whole["embeddings"][crop, bank.start : bank.start + count]
            )
            assert torch.equal(seen[:count], whole["seen"][bank.start : bank.start + count])
            assert torch.equal(restored.crop(crop)[0][:count], mine[:count])
            assert torch.equal(restored.crop(crop)[1], seen)
