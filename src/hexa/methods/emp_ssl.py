"""EMP-SSL (Tong et al., 2023): crops of an image agree with their mean, those of a batch spread in all directions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from hexa.core import Batch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, unit
from hexa.ops.coding_rate import coding_rate, largest_rate
from hexa.runtime import processes


class EMPSSLConfig(EncoderConfig):
    """EMP-SSL as published for CIFAR-10: λ 200, ε² 0.2, a projector of hidden width 4096."""

    name: Literal["emp-ssl"] = "emp-ssl"
    num_views: ClassVar = (2, None, "EMP-SSL compares crops with their mean")
    dim: int = pydantic.Field(default=1024, gt=0)
    """Width of the embedding, D."""
    hidden: int = pydantic.Field(default=4096, gt=0)
    """Width of the projector's two hidden layers."""
    similarity_weight: float = pydantic.Field(default=200.0, ge=0)
    """λ, the weight of the crops' similarity to their mean."""
    distortion: float = pydantic.Field(default=0.2, gt=0)
    """ε² of the coding rate, the squared error up to which directions are coded."""
    adversarial_terms: Literal["query", "joint"] = "query"
    """What adversarial crops are compared with: the mean of their image's clean crops, as a label (query); their own
    mean, with gradient, as in the clean term (joint)."""


@dataclass(frozen=True, eq=False)
class MeanCrops(PseudoLabels):
    """The direction of the mean of each image's clean crops, unit rows [B, D]. mixed: labels of a mixed example."""

    means: Tensor
    mixed_views: bool = False

    def __getitem__(self, index: Index) -> MeanCrops:
        return replace(self, means=self.means[index])

    def mixed(self, permutation: Tensor) -> tuple[MeanCrops, MeanCrops]:
        own = replace(self, mixed_views=True)
        return own, own[permutation]


class EMPSSL(Method[MeanCrops], config=EMPSSLConfig):
    """L_vi = λ·(1 − cos(z_vi, z̄_i)) + R_max − R(Z_v), z̄_i the mean of the unit projections of image i's crops.

    R(Z_v) = ½ log det(I + d/(n ε²)·Z_vᵀ Z_v) is the total coding rate of the n images' crops v, over all processes; it
    belongs to no image, so each has the same. The published loss is −R − λ·cos: λ and R_max, the largest R that n
    unit rows can have, are added so that 0 is the least, which changes no gradient. The clean term goes back through
    the mean as published. A hard example is to have the direction of its clean crops' mean, a mixed one those of both
    images by area, and spreads itself. The published evaluation averages features of many crops; here it sees one.
    """

    labels_from_embedding = True

    def __init__(self, config: EMPSSLConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        #: R_max − ½ log(1 + d / ε²): all crops of all images in one direction.
        self.chance_loss = largest_rate(setting.batch_size, config.dim, config.distortion)
        self.chance_loss -= 0.5 * math.log(1 + config.dim / config.distortion)
        layers: list[nn.Module] = []
        for before, after in (
            (num_features(backbone), config.hidden),
            (config.hidden, config.hidden),
        ):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
        head = nn.Sequential(*layers, nn.Linear(config.hidden, config.dim))
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> MeanCrops:
        assert embedding is not None, "the mean is that of the clean embedding"
        return MeanCrops(unit(embedding.mean(0)))

    def clean_loss(self, embedding: Tensor, labels: MeanCrops) -> Tensor:
        """[V, B], with gradient through the crops' mean."""
        return self._loss(embedding, unit(embedding.mean(0)))

    def loss(self, embedding: Tensor, labels: MeanCrops) -> Tensor:
        joint = self.config.adversarial_terms == "joint" and not labels.mixed_views
        return self.clean_loss(embedding, labels) if joint else self._loss(embedding, labels.means)

    def _loss(self, embedding: Tensor, means: Tensor) -> Tensor:
        everyone = processes.all_gather_with_gradient(embedding.transpose(0, 1)).transpose(
            0, 1
        )  # [V, n, D]
        count, dim = everyone.shape[1:]
        lacking = largest_rate(count, dim, self.config.distortion) - coding_rate(
            everyone, self.config.distortion
        )
        return self.config.similarity_weight * (1 - (embedding * means).sum(-1)) + lacking[:, None]

    def correct(self, embedding: Tensor, labels: MeanCrops) -> Tensor:
        """Whether the own image's mean is the nearest of those of the batch."""
        images = torch.arange(embedding.shape[1], device=embedding.device)
        return (embedding @ labels.means.T.to(embedding.dtype)).argmax(-1) == images
