"""InfoMin (Tian et al., NeurIPS 2020; F29): MoCo-v2, whose key is recognised from a puzzle too."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from hexa.config import field_error
from hexa.core import Batch, Branch, Method, MethodConfig, Setting
from hexa.methods.moco import MoCo, MoCoConfig, MoCoLabels, completed_by
from hexa.nn.backbones import num_features
from hexa.nn.encoder import mlp_head
from hexa_paper.methods.jigsaw import UNMIXABLE, PuzzleConfig
from hexa_paper.nn.tiles import TileHead

#: What InfoMin's MoCo has of its own; the rest is MoCo-v2's.
_CONTRAST = {"temperature": 0.15}


class InfoMinConfig(MethodConfig):
    """InfoMin with its jigsaw branch, as published for ImageNet; without the branch it is `moco` with these views."""

    name: Literal["infomin"] = "infomin"
    num_views: ClassVar = (3, 3, "InfoMin takes a query, a key and a view that becomes a puzzle")
    unmixable: ClassVar[str] = UNMIXABLE
    contrast: Annotated[MoCoConfig, completed_by(_CONTRAST)] = MoCoConfig.model_validate(_CONTRAST)
    """The part that is MoCo: m 0.999, τ 0.15, a queue of 65,536."""
    puzzle: PuzzleConfig = PuzzleConfig()
    """The puzzle that the third view becomes."""
    puzzle_weight: float = pydantic.Field(default=0.5, ge=0, le=1)
    """β: the share of the puzzle's term; the query's has the rest."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        self.contrast.check_within("contrast", replace(setting, num_crops=2))
        if self.contrast.symmetric:
            raise field_error(
                "method.contrast.symmetric", "InfoMin has one key per image; use false"
            )


class InfoMin(Method[MoCoLabels], config=InfoMinConfig):
    """L = (1 − β)·InfoNCE(q, k⁺) + β·InfoNCE(g(puzzle), k⁺), both against the queue; g a head of its own.

    The anchors are the query and the puzzle of the third view, as a picture; both are attacked where they are seen. The
    published code leaves the colours of that view alone, here it has those of the others.
    """

    loss_per_image = True

    def __init__(self, config: InfoMinConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        dim = config.contrast.dim
        width = num_features(backbone)
        count = config.puzzle.grid**2
        self.contrast = MoCo(config.contrast, backbone, replace(setting, num_crops=2))
        self.chance_loss = (
            self.contrast.chance_loss
        )  # both terms are told apart from the same queue
        self.puzzle_head = TileHead(
            config.puzzle.grid, mlp_head(width, dim), nn.Linear(count * dim, dim)
        )

    @property
    def backbone(self) -> nn.Module:
        return self.contrast.backbone

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.crops[0], self.config.puzzle.shuffled(batch.crops[2], batch)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        puzzles = (
            self.puzzle_head.embed(puzzle, self.contrast.query, branch) for puzzle in crops[1:]
        )
        return torch.stack([self.contrast.embed(crops[:1], branch)[0], *puzzles])

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> MoCoLabels:
        return self.contrast.pseudo_labels(batch, embedding)

    def loss(self, embedding: Tensor, labels: MoCoLabels) -> Tensor:
        share = self.config.puzzle_weight
        # the mean over the anchors divides by their number
        weights = len(embedding) * torch.tensor([1 - share, share])[: len(embedding), None]
        return self.contrast.loss(embedding, labels) * weights.to(
            embedding.device, non_blocking=True
        )

    def correct(self, embedding: Tensor, labels: MoCoLabels) -> Tensor:
        return self.contrast.correct(embedding, labels)

    def commit(self, batch: Batch, embedding: Tensor, labels: MoCoLabels) -> None:
        self.contrast.commit(batch, embedding, labels)
