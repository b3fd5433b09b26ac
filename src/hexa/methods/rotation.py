"""Rotation prediction (Gidaris et al., ICLR 2018; F29): classify the number of quarter turns of an
image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.core import Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa.ops import draws
from hexa.runtime.precision import at_least_fp32


class RotationConfig(EncoderConfig):
    """Rotation prediction as published: all four rotations of every image, a linear classifier."""

    name: Literal["rotation"] = "rotation"
    num_views: ClassVar = (1, 1, "rotation prediction turns one view")


@dataclass(frozen=True, eq=False)
class DrawnClasses(PseudoLabels):
    """The class of every crop, int64 [V, B]: the number of the transformation that was drawn for
    it."""

    classes: Tensor

    def __getitem__(self, index: Index) -> DrawnClasses:
        return DrawnClasses(self.classes[:, index])

    def cross_entropy(self, scores: Tensor) -> Tensor:
        """Return −log softmax(scores) at the class, [V, B], for scores [V, B, K], in fp32 or
        better."""
        rows = at_least_fp32(scores).flatten(0, 1)
        losses = F.cross_entropy(rows, self.classes.flatten(), reduction="none")
        return losses.view_as(self.classes)


class ClassifiesDraws(Method[DrawnClasses]):
    """A method whose head classifies the transformation drawn for each view, with cross-entropy."""

    loss_per_image = True

    def directions(self, embedding: Tensor) -> None:
        return None

    def loss(
        self,
        embedding: Tensor,
        labels: DrawnClasses,
    ) -> Tensor:
        return labels.cross_entropy(embedding)

    def correct(
        self,
        embedding: Tensor,
        labels: DrawnClasses,
    ) -> Tensor:
        return embedding.argmax(-1) == labels.classes


class Rotation(ClassifiesDraws, config=RotationConfig):
    """L = −log softmax(W·h)_r, with h the features of an image turned by r quarters; mean over all
    four turns.

    The order of the four turned copies is drawn for each image. Two images that are mixed therefore
    usually show different turns, each with its share of the pseudo-label.
    """

    is_static = True
    encoder: Encoder

    def __init__(
        self,
        config: RotationConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.chance_loss = math.log(4)
        head = nn.Linear(num_features(backbone), 4)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)

    def _turns(self, batch: Batch) -> Tensor:
        """Return the quarter turns [4, B] of the crops: a first one drawn per image, then the next
        three."""
        device = batch.crops[0].device
        draw = partial(draws.integers, len(batch), 4)
        first = draws.drawn(draw, batch.stream.child("first turn"), device)
        return (first + torch.arange(4, device=device)[:, None]) % 4

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        crop = batch.crops[0]
        turned = torch.stack([torch.rot90(crop, quarters, (2, 3)) for quarters in range(4)])
        images = torch.arange(turned.shape[1], device=turned.device)
        return tuple(turned[quarters, images] for quarters in self._turns(batch))

    def embed(
        self,
        crops: tuple[Tensor, ...],
        branch: Branch,
    ) -> Tensor:
        return self.encoder.project(crops, branch)

    def pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> DrawnClasses:
        return DrawnClasses(self._turns(batch))
