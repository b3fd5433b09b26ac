"""Shuffling BN (F5): exchange images between groups and processes while they are encoded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hexa.ops import draws
from hexa.runtime import processes
from hexa.runtime.random import Stream


def in_other_places(
    crops: Tensor,
    encode: Callable[[Tensor], Tensor],
    stream: Stream,
) -> Tensor:
    """Return encode(crops) [B, …] of this process's crops [B, …], each encoded at a random position
    of the global batch.

    The permutation of all processes' images is drawn from `stream`, which is the same on every
    process.
    """
    size = len(crops)
    begin = processes.rank() * size
    own = slice(begin, begin + size)
    total = size * processes.world_size()

    def draw(own: Stream) -> Tensor:
        return torch.randperm(total, generator=own.generator())

    permutation = draws.drawn(draw, stream, crops.device)
    # every process takes the images at its positions in the permutation
    mine = processes.all_gather(crops)[permutation[own]]
    if crops.is_contiguous(memory_format=torch.channels_last):
        mine = mine.contiguous(memory_format=torch.channels_last)
    # return the results to the processes of their images
    shuffled = processes.all_gather(encode(mine))
    back = torch.empty_like(permutation)
    back[permutation] = torch.arange(total, device=crops.device)
    return shuffled[back[own]]
