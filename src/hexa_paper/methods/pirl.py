"""PIRL (Misra & van der Maaten, CVPR 2020; F29): recognise an image in a memory, by a view and by a puzzle of another view."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from hexa.core import Batch, Branch, Method, Setting
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa_paper.methods.instdisc import InstanceLabels, InstDisc, Memory, MemoryConfig
from hexa_paper.methods.jigsaw import UNMIXABLE, PuzzleConfig
from hexa_paper.nn.tiles import TileHead


class PIRLConfig(MemoryConfig):
    """PIRL as published for ImageNet: 3 × 3 tiles, 32,000 negatives, both terms alike."""

    name: Literal["pirl"] = "pirl"
    num_views: ClassVar = (2, 2, "PIRL takes a view as it is and a second one as a puzzle")
    unmixable: ClassVar[str] = UNMIXABLE
    puzzle: PuzzleConfig = PuzzleConfig()
    """The puzzle that the second view becomes."""
    puzzle_weight: float = pydantic.Field(default=0.5, ge=0, le=1)
    """λ: the share of the puzzle's term; the image's has the rest."""
    objective: Literal["nce", "softmax"] = "nce"
    """nce: noise-contrastive estimation, as published; softmax: InfoNCE over the own memory and the negatives, which
    needs fewer epochs."""
    num_negatives: PositiveInt = 32000
    """Random images per step, n, shared by the images of the step."""


class PIRL(InstDisc, config=PIRLConfig):
    """L = (1 − λ)·NCE(f(v_I), m_I) + λ·NCE(g(v_It), m_I), m_I the memory of the image, f and g heads of one backbone.

    Anchors are a view and the puzzle of another, as pictures. The memory follows the clean views' f (momentum μ); hard
    examples of both are compared with its earlier content. Negatives are shared by the images of a step.
    """

    def __init__(
        self,
        config: PIRLConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        Method.__init__(self)  # not InstDisc's, which has one head
        self.config: PIRLConfig = config
        #: For the softmax; NCE's depends on more.
        self.chance_loss = None
        if config.objective == "softmax":
            self.chance_loss = math.log1p(config.num_negatives)
        width = num_features(backbone)
        grid = config.puzzle.grid
        head = nn.Linear(width, config.dim)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        each = nn.Linear(width, config.dim)
        joined = nn.Linear(grid**2 * config.dim, config.dim)
        self.puzzle_head = TileHead(grid, each, joined)
        self.bank = Memory(config, setting.data_size, setting.seed, drawn=True)

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        view, other = batch.crops
        return view, self.config.puzzle.shuffled(other, batch)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        (view,) = self.encoder.embed(crops[:1], branch)
        embedded = [view]
        for puzzle in crops[1:]:
            one = self.puzzle_head.embed(puzzle, self.encoder, branch)
            embedded.append(one)
        return torch.stack(embedded)

    def loss(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        losses = self.bank.loss(embedding, labels)
        share = self.config.puzzle_weight
        # the published loss is the weighted sum over anchors; their mean is taken later
        shares = [len(losses) * (1 - share), len(losses) * share]
        weights = torch.tensor(shares)[: len(losses), None]
        moved = weights.to(losses.device, losses.dtype, non_blocking=True)
        return losses * moved
