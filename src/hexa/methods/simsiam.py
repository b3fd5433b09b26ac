"""SimSiam (Chen & He, CVPR 2021): predict the detached projection of the other view by the same
network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from hexa.core import Batch, Branch, EncoderConfig, Method, Setting
from hexa.methods.byol import ViewTargets
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, normalized_head, normalized_layers, unit


class SimSiamConfig(EncoderConfig):
    """SimSiam as published for ImageNet: projector with three layers of 2048, predictor 2048 -> 512
    -> 2048."""

    name: Literal["simsiam"] = "simsiam"
    num_views: ClassVar = (2, 2, "SimSiam compares two views")
    dim: PositiveInt = 2048
    """Width of projection and prediction, D."""
    projector_layers: int = pydantic.Field(default=3, ge=1, le=16)
    """Number of layers of the projector, each D wide with a batch-norm; 2 at CIFAR size."""
    predictor_hidden: PositiveInt = 512
    """Width of the predictor's hidden layer; a quarter of D as published."""
    constant_predictor_rate: bool = True
    """Keep the predictor's learning rate at its maximum."""


class PredictorHead(nn.Module):
    """Features -> prediction p and projection z, unit vectors concatenated to [B, 2·D]; p is
    computed from z."""

    def __init__(
        self,
        projector: nn.Module,
        predictor: nn.Module,
    ) -> None:
        super().__init__()
        self.projector = projector
        self.predictor = predictor

    def forward(self, features: Tensor) -> Tensor:
        projection = self.projector(features)
        return torch.cat([unit(self.predictor(projection)), unit(projection)], -1)


class SimSiam(Method[ViewTargets], config=SimSiamConfig):
    """L = mean over views v of −cos(p_v, z_w), with z_w the detached projection of the other view.

    The embedding concatenates p and z, so pseudo-labels (the clean z) need no extra pass. A hard
    example predicts the clean z of the other view. Views go through the network one after another,
    as published.
    """

    labels_from_embedding = True
    is_static = True
    encoder: Encoder

    def __init__(
        self,
        config: SimSiamConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        widths = [num_features(backbone), *[config.dim] * config.projector_layers]
        projector = normalized_layers(widths, last_weight=False)
        predictor = normalized_head(config.dim, config.predictor_hidden, config.dim)
        head = PredictorHead(projector, predictor)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)

    def unscheduled(self) -> Iterable[nn.Parameter]:
        head = self.encoder.head
        assert isinstance(head, PredictorHead)
        return head.predictor.parameters() if self.config.constant_predictor_rate else ()

    def embed(
        self,
        crops: tuple[Tensor, ...],
        branch: Branch,
    ) -> Tensor:
        return self.encoder.project(crops, branch, together=False)

    def directions(self, embedding: Tensor) -> Tensor:
        return embedding[..., self.config.dim :]

    def pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> ViewTargets:
        assert embedding is not None, "targets are made of the clean embedding"
        return ViewTargets(embedding.detach()[..., self.config.dim :].flip(0))

    def loss(
        self,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> Tensor:
        return -(embedding[..., : self.config.dim] * labels.targets[: len(embedding)]).sum(-1)

    def correct(
        self,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> Tensor:
        return labels.nearest_is_own(embedding[..., : self.config.dim])
