"""Images cut into tiles: overlapping patches, and puzzles of tiles that are put together in another order."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

#: Random permutations among which the farthest from those chosen before is the next one.
_CANDIDATES = 100


def mosaic(
    images: Tensor,
    order: Tensor,
    offsets: Tensor,
    tile: int,
) -> Tensor:
    """Puzzles of images [B, C, S, S]: one tile from each cell of a G × G grid, in another order.

    order: int64 [B, G²], the cell that each place shows. offsets: [B, G², 2] in [0, 1), the position of the tile of
    `tile` pixels within its cell, so that no edge continues into the next tile. Returns [B, C, G·tile, G·tile];
    differentiable.
    """
    batch, channels, size = images.shape[:3]
    grid = math.isqrt(order.shape[1])
    cell = size // grid
    cells = torch.stack((order // grid, order % grid), -1)  # [B, G², 2]
    within = (offsets * (cell - tile + 1)).long()
    corners = cells * cell + within
    steps = torch.arange(tile, device=images.device)
    begins = corners[..., None]
    along = begins + steps  # [B, G², 2, t]
    rows = along[:, :, 0, :, None]
    columns = along[:, :, 1, None, :]
    places = rows * size + columns  # [B, G², t, t]
    of_channels = places.view(batch, 1, -1).expand(-1, channels, -1)
    pixels = images.flatten(2).gather(2, of_channels)
    tiles = pixels.view(batch, channels, grid, grid, tile, tile)
    side = grid * tile
    return tiles.transpose(3, 4).reshape(batch, channels, side, side)


def cut(mosaics: Tensor, grid: int) -> Tensor:
    """The tiles of mosaics [B, C, G·t, G·t], image after image: [B·G², C, t, t]."""
    batch, channels, size = mosaics.shape[:3]
    tile = size // grid
    cells = mosaics.view(batch, channels, grid, tile, grid, tile)
    first = cells.permute(0, 2, 4, 1, 3, 5)
    return first.reshape(batch * grid * grid, channels, tile, tile)


def patches(
    images: Tensor,
    side: int,
    stride: int,
) -> Tensor:
    """The overlapping patches of images [B, C, S, S], row by row: [B, G, G, C, side, side].

    G = (S − side) / stride + 1, rounded down: what is left at the right and below is in no patch. Differentiable.
    """
    rows = images.unfold(2, side, stride)
    cells = rows.unfold(3, side, stride)
    return cells.permute(0, 2, 3, 1, 4, 5)


def permutations(
    length: int,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """`count` distinct permutations of `length` places, far from each other in Hamming distance: int64 [count, length].

    Each is chosen from random candidates as the farthest from its nearest neighbour among those chosen before; if few
    permutations exist, random ones are taken. Raises ValueError if there are fewer than `count`.
    """
    possible = math.factorial(length)
    if count > possible:
        known = f"{length} tiles have only {possible} permutations"
        raise ValueError(f"{known}, got count {count}; use at most {possible}")
    if possible <= 10 * count:
        every = torch.tensor(list(itertools.permutations(range(length))))
        drawn = torch.randperm(possible, generator=generator)
        return every[drawn[:count]]
    first = torch.randperm(length, generator=generator)
    chosen = first[None]
    while len(chosen) < count:
        drawn = torch.rand(_CANDIDATES, length, generator=generator)
        offered = drawn.argsort(1)
        distances = (offered[:, None] != chosen).sum(-1)
        nearest = distances.amin(1)
        best = int(nearest.argmax())
        if nearest[best] > 0:
            chosen = torch.cat([chosen, offered[best : best + 1]])
    return chosen
