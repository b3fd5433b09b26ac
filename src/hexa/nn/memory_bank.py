"""A memory bank of all images, sharded over the processes and independent of their number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hexa.runtime import processes


class MemoryBank(nn.Module):
    """The newest embeddings of some crops of every image (F8).

    With N images and W processes, process r keeps the rows r·L … (r + 1)·L − 1, L = ⌈N / W⌉, whichever process saw
    them. So the bank does not depend on W, and a run may continue with another number of processes. `seen` marks the
    images written since `forget`. Buffers: embeddings [A, L + 1, D], seen [L + 1]; the last row takes what belongs to
    other processes, so that nothing has to be counted on the device.
    """

    def __init__(self, data_size: int, num_crops: int, dim: int) -> None:
        super().__init__()
        self.data_size = data_size
        self.rows = -(-data_size // processes.world_size())
        self.start = processes.rank() * self.rows
        self.embeddings = nn.Buffer(torch.zeros(num_crops, self.rows + 1, dim))
        self.seen = nn.Buffer(torch.zeros(self.rows + 1, dtype=torch.bool))

    def write(self, index: Tensor, embeddings: Tensor) -> None:
        """Store embeddings [A, b, D] of the images `index` [b] of this process; every process calls it."""
        local = self._rows_of(index)
        rows = processes.all_gather(embeddings.transpose(0, 1)).transpose(0, 1)  # [A, W·b, D]
        self.embeddings.index_copy_(1, local, rows.to(self.embeddings.dtype))
        self.seen.index_fill_(0, local, True)

    def keep(self, index: Tensor) -> None:
        """Mark the stored embeddings of images `index` [b], which were in the batch without being embedded, as seen."""
        local = self._rows_of(index)
        self.seen.index_copy_(0, local, self.embeddings[0].index_select(0, local).any(1))

    def _rows_of(self, index: Tensor) -> Tensor:
        """The rows in this shard of all processes' `index`, [W·b]; the last row for images of other shards."""
        local = processes.all_gather(index) - self.start
        return torch.where((local >= 0) & (local < self.rows), local, self.rows)

    def crop(self, number: int) -> tuple[Tensor, Tensor]:
        """This process's rows [L, D] of a crop, and which of them were seen since `forget`, [L]."""
        return self.embeddings[number, : self.rows], self.seen[: self.rows]

    def forget(self) -> None:
        """Mark all images as not seen."""
        self.seen.zero_()

    def join(self, values: Tensor) -> Tensor:
        """Gather one value per row of this process, [L], to one per image, [N], on every process."""
        return processes.all_gather(values)[: self.data_size]

    def whole(self) -> dict[str, Tensor]:
        """All rows, on the CPU of the main process: embeddings [A, N, D], seen [N]; empty elsewhere. A collective."""
        embeddings = processes.gather(self.embeddings[:, : self.rows])
        seen = processes.gather(self.seen[: self.rows])
        if not seen:
            return {}
        return {
            "embeddings": torch.cat([part.cpu() for part in embeddings], 1)[:, : self.data_size],
            "seen": torch.cat([part.cpu() for part in seen])[: self.data_size],
        }

    def take(self, embeddings: Tensor, seen: Tensor) -> None:
        """Load this process's rows of a whole bank."""
        part = slice(self.start, min(self.start + self.rows, self.data_size))
        count = max(0, part.stop - part.start)
        self.embeddings[:, :count].copy_(embeddings[:, part])
        self.seen.zero_()
        self.seen[:count].copy_(seen[part])
