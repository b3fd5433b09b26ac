"""Images cut into a grid of tiles that change places: jigsaw puzzles."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def mosaic(images: Tensor, order: Tensor, offsets: Tensor, tile: int) -> Tensor:
    """Tiles of images [B, C, S, S], each out of a cell of a G × G grid, put together in another order.

    order: int64 [B, G²], which cell each place shows. offsets: [B, G², 2] in [0, 1), where in its cell a tile of `tile`
    pixels lies, so that no edge runs on from one tile to the next. Returns [B, C, G·tile, G·tile]; differentiable.
    """
    batch, channels, size = images.shape[:3]
    grid = math.isqrt(order.shape[1])
    cell = size // grid
    corners = torch.stack((order // grid, order % grid), -1) * cell + (offsets * (cell - tile + 1)).long()  # [B, G², 2]
    along = corners[..., None] + torch.arange(tile, device=images.device)  # [B, G², 2, t]
    places = along[:, :, 0, :, None] * size + along[:, :, 1, None, :]  # [B, G², t, t]
    pixels = images.flatten(2).gather(2, places.view(batch, 1, -1).expand(-1, channels, -1))
    tiles = pixels.view(batch, channels, grid, grid, tile, tile)
    return tiles.transpose(3, 4).reshape(batch, channels, grid * tile, grid * tile)


def cut(mosaics: Tensor, grid: int) -> Tensor:
    """The tiles of mosaics [B, C, G·t, G·t], image after image: [B·G², C, t, t]."""
    batch, channels, size = mosaics.shape[:3]
    tile = size // grid
    cells = mosaics.view(batch, channels, grid, tile, grid, tile)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(batch * grid * grid, channels, tile, tile)


def permutations(length: int, count: int, generator: torch.Generator, candidates: int = 100) -> Tensor:
    """`count` different permutations of `length` places, far from each other: int64 [count, length].

    Each further one is of some random candidates the one whose nearest neighbour among those chosen is farthest by
    Hamming distance; if there are few places, all permutations are taken. Raises ValueError if too few exist.
    """
    possible = math.factorial(length)
    if count > possible:
        raise ValueError(f"{count} are more than the {possible} permutations of {length} tiles; use {possible}")
    if possible <= 10 * count:
        every = torch.tensor(list(itertools.permutations(range(length))))
        return every[torch.randperm(possible, generator=generator)[:count]]
    chosen = torch.randperm(length, generator=generator)[None]
    while len(chosen) < count:
        offered = torch.rand(candidates, length, generator=generator).argsort(1)
        nearest = (offered[:, None] != chosen).sum(-1).amin(1)
        best = int(nearest.argmax())
        if nearest[best] > 0:
            chosen = torch.cat([chosen, offered[best : best + 1]])
    return chosen
