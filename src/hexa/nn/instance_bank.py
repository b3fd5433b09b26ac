"""A memory bank with one embedding per image, complete on every process."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.runtime import processes
from hexa.runtime.random import Stream


class InstanceBank(nn.Module):
    """A unit vector m_i per image: random at first, then m_i ← unit(μ·m_i + (1 − μ)·z_i) whenever image i is seen.

    Buffer: rows [N, D], the same on every process (InstDisc, PIRL; F29).
    """

    def __init__(self, data_size: int, dim: int, momentum: float, seed: int) -> None:
        super().__init__()
        self.momentum = momentum
        draw = torch.randn(data_size, dim, generator=Stream(seed).child("instance bank").generator())
        self.register_buffer("rows", F.normalize(draw))
        self.rows: Tensor

    def drawn(self, count: int, stream: Stream) -> Tensor:
        """`count` rows drawn with replacement from `stream`: the same for all images and processes."""
        places = torch.randint(len(self.rows), (count,), generator=stream.generator())
        return self.rows[places.to(self.rows.device, non_blocking=True)]

    def update(self, index: Tensor, embedding: Tensor) -> None:
        """Store the unit vectors [b, D] of the images `index` [b] of this process; every process calls it."""
        index, embedding = processes.all_gather(index), processes.all_gather(embedding).to(self.rows.dtype)
        # an image that replaces an unreadable one occurs twice; all processes must keep the same embedding of it
        place = torch.arange(len(index), dtype=torch.int32, device=index.device)
        last = ((index[:, None] == index) * place).amax(1)
        self.rows[index] = F.normalize(self.rows[index].lerp(embedding[last], 1 - self.momentum))

    def note(self) -> str:
        """A line for users about its memory."""
        count, dim = self.rows.shape
        return f"memory bank of {count:,} images × {dim} on every process, {count * dim * 4 / 1e6:,.1f} MB"


def partition(rows: Tensor, temperature: float) -> float:
    """Z = N · E[exp(m·q/τ)] over the random rows [N, D] that a bank starts with, for any unit vector q.

    The published code takes the mean over its first batch; since rows are isotropic, the mean over the axes is the same
    number with less noise.
    """
    return len(rows) * float((rows / temperature).exp().mean())
