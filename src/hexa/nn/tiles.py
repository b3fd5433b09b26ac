"""One embedding from the tiles of an image."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class TileHead(nn.Module):
    """Features of tiles, image after image, [B·T, F] -> [B, D]: `each` on tiles, then `joined` on images."""

    def __init__(self, tiles: int, each: nn.Module, joined: nn.Module) -> None:
        super().__init__()
        self.tiles = tiles
        self.each = each
        self.joined = joined

    def forward(self, features: Tensor) -> Tensor:
        rows = self.each(features)
        return cast(Tensor, self.joined(rows.view(-1, self.tiles * rows.shape[1])))
