"""A memory bank of all images, sharded over the processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hexa.runtime import processes


class MemoryBank(nn.Module):
    """The latest embeddings of some crops of every image (F8).

    With N images and W processes, process r stores the rows r·L … (r + 1)·L − 1, L = ⌈N / W⌉, no
    matter which process saw these images. The content therefore does not depend on W, and a run may
    resume with another number of processes. `seen` marks the images written since `forget`.
    Buffers: embeddings [A, L + 1, D], seen [L + 1]. The last row receives images of other
    processes, so that no counting on the device is needed.
    """

    def __init__(
        self,
        data_size: int,
        num_crops: int,
        dim: int,
    ) -> None:
        super().__init__()
        self.data_size = data_size
        self.rows = -(-data_size // processes.world_size())
        self.start = processes.rank() * self.rows
        size = self.rows + 1
        self.embeddings = nn.Buffer(torch.zeros(num_crops, size, dim))
        self.seen = nn.Buffer(torch.zeros(size, dtype=torch.bool))

    def write(
        self,
        index: Tensor,
        embeddings: Tensor,
    ) -> None:
        """Store embeddings [A, b, D] of this process's images `index` [b]. Every process calls
        this."""
        local = self._rows_of(index)
        rows = processes.all_gather(embeddings.transpose(0, 1))  # [W·b, A, D]
        rows = rows.transpose(0, 1).to(self.embeddings.dtype)
        self.embeddings.index_copy_(1, local, rows)
        self.seen.index_fill_(0, local, True)

    def keep(self, index: Tensor) -> None:
        """Mark the stored embeddings of images `index` [b] as seen; these images were in the batch
        but were not embedded."""
        local = self._rows_of(index)
        stored = self.embeddings[0].index_select(0, local).any(1)
        self.seen.index_copy_(0, local, stored)

    def _rows_of(self, index: Tensor) -> Tensor:
        """Return the rows in this shard of all processes' `index`, [W·b]; the last row for images
        of other shards."""
        local = processes.all_gather(index) - self.start
        is_here = (local >= 0) & (local < self.rows)
        return torch.where(is_here, local, self.rows)

    def crop(self, number: int) -> tuple[Tensor, Tensor]:
        """Return this process's rows [L, D] of a crop, and whether each was seen since `forget`,
        [L]."""
        return self.embeddings[number, : self.rows], self.seen[: self.rows]

    def forget(self) -> None:
        """Mark all images as not seen."""
        self.seen.zero_()

    def join(self, values: Tensor) -> Tensor:
        """Gather one value per row of this process, [L], to one value per image, [N], on every
        process."""
        return processes.all_gather(values)[: self.data_size]

    def part(self) -> dict[str, Tensor]:
        """Return this process's rows: embeddings [A, L, D], seen [L]."""
        return {"embeddings": self.embeddings[:, : self.rows], "seen": self.seen[: self.rows]}

    def take(
        self,
        embeddings: Tensor | list[Tensor],
        seen: Tensor | list[Tensor],
    ) -> None:
        """Load this process's rows from the parts of any number of processes, in rank order; a
        tensor is the only part. Raises RuntimeError if rows are missing."""
        self.seen.zero_()
        offset = -self.start  # of a part's first row in this shard
        for rows, marks in zip(_parts(embeddings), _parts(seen), strict=False):
            here = slice(max(offset, 0), min(offset + len(marks), self.rows))
            there = slice(here.start - offset, here.stop - offset)
            if here.start < here.stop:
                self.seen[here].copy_(marks[there])
                self.embeddings[:, here].copy_(rows[:, there])
            offset += len(marks)
        if offset + self.start < self.data_size:
            count = offset + self.start
            raise RuntimeError(f"a bank of {count} rows for {self.data_size} images")


def _parts(value: Tensor | list[Tensor]) -> list[Tensor]:
    return value if isinstance(value, list) else [value]
