"""One embedding from the tiles of an image."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from hexa.core import Branch
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder, unit
from hexa_paper.ops import puzzles


class TileHead(nn.Module):
    """Features of tiles, image after image, [B·T, F] -> [B, D]: `each` on tiles, then `joined` on images.

    grid: cells a side of a puzzle, G; T = G².
    """

    def __init__(self, grid: int, each: nn.Module, joined: nn.Module) -> None:
        super().__init__()
        self.grid = grid
        self.each = each
        self.joined = joined

    def forward(self, features: Tensor) -> Tensor:
        rows = self.each(features)
        width = self.grid**2 * rows.shape[1]
        joined = self.joined(rows.view(-1, width))
        return cast(Tensor, joined)

    def embed(self, puzzle: Tensor, encoder: Encoder, through: Branch) -> Tensor:
        """Puzzles [B, C, S, S] -> unit vectors [B, D], each tile through the encoder's backbone by itself."""
        tiles = puzzles.cut(puzzle, self.grid)
        with use_branch(encoder, through, len(puzzle)):
            features = encoder.features(tiles)
            return unit(self(features))
