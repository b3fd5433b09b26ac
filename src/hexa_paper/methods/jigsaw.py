"""Jigsaw puzzles (Noroozi & Favaro, ECCV 2016; F29): recognise the order of the tiles of an image."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import pydantic
from pydantic import PositiveInt
from torch import Tensor, nn

from hexa.config import Config, field_error
from hexa.core import Batch, Branch, EncoderConfig, Setting
from hexa.methods.rotation import ClassifiesDraws, DrawnClasses
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa.ops import draws
from hexa.runtime.random import Stream
from hexa_paper.nn.tiles import TileHead
from hexa_paper.ops import puzzles as tiles

#: Said where a hard example would put a box of one puzzle into another.
UNMIXABLE = "its views are puzzles, and a mixture of two is in neither's order; use adversarial or vat views"


class PuzzleConfig(Config):
    """The puzzle that a view becomes."""

    grid: int = pydantic.Field(default=3, ge=2, le=16)
    """Cells a side, G."""
    tile_share: float = pydantic.Field(default=0.75, gt=0, le=1)
    """The side of a tile over that of its cell; where in its cell it lies is drawn. 64 of 85 pixels as published."""

    def tile(self, size: int) -> int:
        """Pixels of a tile's side for views of `size`."""
        return max(1, round(self.tile_share * (size // self.grid)))

    def shuffled(self, view: Tensor, batch: Batch) -> Tensor:
        """The puzzles of a view [B, 3, S, S] of the images of a batch, in an order drawn for each image."""
        order = draws.uniforms(len(batch), self.grid**2, batch.stream.child("order")).argsort(1)
        return self.puzzle(view, order.to(view.device, non_blocking=True), batch)

    def puzzle(
        self,
        view: Tensor,
        order: Tensor,
        batch: Batch,
    ) -> Tensor:
        """The puzzles of a view [B, 3, S, S] of the images of a batch, with tiles in this order [B, G²]."""
        offsets = draws.uniforms(len(batch), 2 * self.grid**2, batch.stream.child("tiles")).view(
            len(batch), -1, 2
        )
        return tiles.mosaic(
            view, order, offsets.to(view.device, non_blocking=True), self.tile(view.shape[-1])
        )


class JigsawConfig(EncoderConfig):
    """Jigsaw puzzles as published for ResNet-50 (Goyal et al., ICCV 2019): 3 × 3 tiles, 2000 permutations."""

    name: Literal["jigsaw"] = "jigsaw"
    num_views: ClassVar = (1, 1, "a puzzle is made of one view")
    unmixable: ClassVar[str] = UNMIXABLE
    puzzle: PuzzleConfig = PuzzleConfig()
    """The puzzle that a view becomes."""
    num_permutations: int = pydantic.Field(default=2000, gt=1)
    """Number of orders that are classes; a grid of 2 has 24 in all."""
    hidden: PositiveInt = 1000
    """Width of the layer that every tile goes through before all are joined."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        possible = math.factorial(self.puzzle.grid**2)
        if self.num_permutations > possible:
            message = f"{self.num_permutations} are more than the {possible} orders of the tiles; use {possible}"
            raise field_error("method.num_permutations", message)


class Jigsaw(ClassifiesDraws, config=JigsawConfig):
    """L = −log softmax(W·[h_1 … h_T])_p: the tiles of an image, encoded apart, and their permutation p.

    The anchor is the puzzle as one picture, so an adversarial view is attacked where it is seen. The published code
    normalises the colours of each tile, against shortcuts; here tiles of a view share their colours.
    """

    encoder: Encoder

    def __init__(
        self,
        config: JigsawConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        self.chance_loss = math.log(config.num_permutations)
        count = config.puzzle.grid**2
        each = nn.Sequential(
            nn.Linear(num_features(backbone), config.hidden), nn.ReLU(inplace=True)
        )
        head = TileHead(
            config.puzzle.grid, each, nn.Linear(count * config.hidden, config.num_permutations)
        )
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        generator = Stream(setting.seed).child("permutations").generator()
        self.permutations = nn.Buffer(
            tiles.permutations(count, config.num_permutations, generator)
        )  # [P, G²]

    def _numbers(self, batch: Batch) -> Tensor:
        numbers = draws.integers(
            len(batch), len(self.permutations), batch.stream.child("permutation")
        )
        return numbers.to(self.permutations.device, non_blocking=True)

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        return (
            self.config.puzzle.puzzle(
                batch.crops[0], self.permutations[self._numbers(batch)], batch
            ),
        )

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        (puzzle,) = crops
        cut = tiles.cut(puzzle, self.config.puzzle.grid)
        return self.encoder.project((cut,), branch, together=False, images=len(puzzle))

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> DrawnClasses:
        return DrawnClasses(self._numbers(batch)[None])
