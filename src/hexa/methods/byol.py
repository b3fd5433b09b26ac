"""BYOL (Grill et al., NeurIPS 2020; F29): predict the momentum projection of the other view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from hexa.config import Share
from hexa.core import MAIN, Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, normalized_head
from hexa.nn.momentum import cosine_momentum, follow
from hexa.ops.draws import of_step


class BYOLConfig(EncoderConfig):
    """BYOL as published for ImageNet: projector and predictor with hidden width 4096, m from 0.996
    to 1."""

    name: Literal["byol"] = "byol"
    num_views: ClassVar = (2, 2, "BYOL compares two views")
    dim: PositiveInt = 256
    """Width of projection and prediction, D."""
    hidden: PositiveInt = 4096
    """Width of the hidden layer of projector and predictor."""
    momentum: Share = 0.996
    """Initial m of the momentum network; it rises to 1 along half a cosine over the run. 0.99 for
    300 epochs."""


@dataclass(frozen=True, eq=False)
class ViewTargets(PseudoLabels):
    """The target of each view's prediction, [V, B, D]: unit vectors of the other view, or a
    teacher's features."""

    targets: Tensor

    def __getitem__(self, index: Index) -> ViewTargets:
        return ViewTargets(self.targets[:, index])

    def nearest_is_own(self, prediction: Tensor) -> Tensor:
        """Return for each prediction [V, B, D] whether its nearest target belongs to the same
        image; bool [V, B]."""
        images = torch.arange(prediction.shape[1], device=prediction.device)
        targets = self.targets[: len(prediction)].to(prediction.dtype)
        return (prediction @ targets.mT).argmax(-1) == images


class BYOL(Method[ViewTargets], config=BYOLConfig):
    """L = 2 − 2·cos(p_v, z_w), summed over both directions, with p_v the prediction of a view and
    z_w the momentum projection of the other view.

    Pseudo-labels are regression targets from clean views. A hard example predicts the same targets
    from its own views; a mixed view predicts the targets of both images, weighted by area. Views go
    through the networks one after another, as published.
    """

    is_static = True
    encoder: Encoder

    loss_per_image = True

    def __init__(
        self,
        config: BYOLConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        # two terms of 2 each, if predictions and targets are unrelated
        self.chance_loss = 4.0
        self.total_steps = setting.epochs * setting.steps_per_epoch
        projector = normalized_head(num_features(backbone), config.hidden, config.dim)
        # the twin copies the whole head, so that names match; then its predictor is removed
        head = nn.Sequential(projector, normalized_head(config.dim, config.hidden, config.dim))
        self.encoder, self.target = Encoder.with_twin(backbone, head, setting, config.bn_groups)
        twin_head = self.target.head
        assert isinstance(twin_head, nn.Sequential)
        twin_head[1] = nn.Identity()

    def embed(
        self,
        crops: tuple[Tensor, ...],
        branch: Branch,
    ) -> Tensor:
        return self.encoder.embed(crops, branch, together=False)

    def pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> ViewTargets:
        return ViewTargets(self.target.embed(batch.crops[::-1], MAIN, together=False))

    def loss(
        self,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> Tensor:
        # the two published terms are added, not averaged
        return len(embedding) * (2 - 2 * (embedding * labels.targets[: len(embedding)]).sum(-1))

    def correct(
        self,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> Tensor:
        return labels.nearest_is_own(embedding)

    def commit(
        self,
        batch: Batch,
        embedding: Tensor,
        labels: ViewTargets,
    ) -> None:
        def momentum(step: int) -> float:
            return cosine_momentum(self.config.momentum, step, self.total_steps)

        follow(self.target, self.encoder, of_step(momentum, batch.step, batch.crops[0].device))
