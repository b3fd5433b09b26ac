"""DINO (Caron et al., ICCV 2021): predict the momentum network's soft class of one crop from other
crops."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import Share
from hexa.core import Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import MAIN, Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa.nn.momentum import cosine_momentum, follow, twin_of
from hexa.ops.draws import of_step
from hexa.ops.swapped import swapped_prediction, targets_of_others
from hexa.runtime import processes


class DINOConfig(EncoderConfig):
    """DINO as published for ViT-S/16 on ImageNet."""

    name: Literal["dino"] = "dino"
    num_views: ClassVar = (2, None, "each crop predicts the class of another")
    num_prototypes: int = pydantic.Field(default=65536, gt=1)
    """Soft classes, K."""
    hidden: PositiveInt = 2048
    """Width of the head's two hidden layers."""
    bottleneck: PositiveInt = 256
    """Width of the embedding, D."""
    head_norm: bool = False
    """Add batch-norms after the head's hidden layers, for convolutional networks (an option of the
    published code)."""
    teacher_crops: PositiveInt = 2
    """Number of crops that the momentum network sees: the first ones, which are the large ones."""
    temperature: PositiveFloat = 0.1
    """τ of the predictions."""
    teacher_temperature: PositiveFloat = 0.07
    """τ of the momentum network, after its warm-up."""
    warmup_teacher_temperature: PositiveFloat = 0.04
    """Initial τ of the momentum network."""
    warmup_epochs: NonNegativeInt = 30
    """Number of epochs over which the momentum network's τ rises linearly."""
    momentum: Share = 0.996
    """Initial m; it rises to 1 along half a cosine over the run."""
    center_momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Momentum of the running mean of the momentum network's scores; larger values change the mean
    more slowly."""
    freeze_prototypes_epochs: NonNegativeInt = 1
    """Number of initial epochs in which the last layer is frozen."""

    def views_needed(self) -> tuple[int, int | None, str]:
        least, most, why = self.num_views
        return max(least, self.teacher_crops), most, why


@dataclass(frozen=True, eq=False)
class SoftClasses(PseudoLabels):
    """The momentum network's classes [T, B, K] for the T crops that it saw; rows sum to one.

    center: [K], the mean of its scores in this step.
    frozen: no gradient reaches the last layer.
    """

    classes: Tensor
    center: Tensor
    frozen: bool

    def __getitem__(self, index: Index) -> SoftClasses:
        return replace(self, classes=self.classes[:, index])


class DINO(Method[SoftClasses], config=DINOConfig):
    """L = mean over crops t of the momentum network, crops v ≠ t and images of −Σ_k P_tk · log
    softmax_k(z_v·w_k / τ).

    P_t = softmax((z′_t·w′ − c) / τ′), with z′ and w′ of the momentum network and c the running mean
    of its scores. The rows w are unit vectors (weight normalisation with lengths fixed at 1; the
    published code learns the lengths for small ViTs, unless `norm_last_layer` is set). The target
    of a hard example is the class of its clean image. Every backbone works; a backbone without
    batch-norm (a ViT) has one branch for all examples.
    """

    is_static = True
    loss_per_image = True

    def __init__(self, config: DINOConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        # all classes equally likely
        self.chance_loss = math.log(config.num_prototypes)
        head = _head(num_features(backbone), config.hidden, config.bottleneck, config.head_norm)
        self.student, self.teacher = Encoder.with_twin(backbone, head, setting, config.bn_groups)
        self.prototypes = nn.Linear(config.bottleneck, config.num_prototypes, bias=False)
        self.teacher_prototypes = twin_of(self.prototypes)
        self.center = nn.Buffer(torch.zeros(config.num_prototypes))
        self.steps_per_epoch = setting.steps_per_epoch
        self.total_steps = setting.epochs * setting.steps_per_epoch

    @property
    def backbone(self) -> nn.Module:
        """The momentum network's backbone, which is better than the trained one, as published."""
        return self.teacher.backbone

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        return self.student.embed(crops, branch)

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> SoftClasses:
        rows = self.teacher.embed(batch.crops[: self.config.teacher_crops], MAIN)
        scores = _cosines(rows, self.teacher_prototypes.weight)
        centred = scores - self.center.to(scores.dtype)
        temperature = of_step(self._teacher_temperature, batch.step, scores.device)
        classes = F.softmax(centred / temperature, -1)
        return SoftClasses(classes, scores.mean((0, 1)), self.phase(batch.step))

    def phase(self, step: int) -> bool:
        """Return whether the last layer is frozen."""
        return step < self.config.freeze_prototypes_epochs * self.steps_per_epoch

    def _teacher_temperature(self, step: int) -> float:
        end = self.config.teacher_temperature
        if not self.config.warmup_epochs:
            return end
        epoch = step // self.steps_per_epoch
        passed = min(1.0, epoch / max(1, self.config.warmup_epochs - 1))
        start = self.config.warmup_teacher_temperature
        return start + passed * (end - start)

    def loss(self, embedding: Tensor, labels: SoftClasses) -> Tensor:
        weight = self.prototypes.weight
        if labels.frozen:
            weight = weight.detach()
        scores = _cosines(embedding, weight) / self.config.temperature
        return swapped_prediction(scores, labels.classes, range(self.config.teacher_crops))

    def correct(self, embedding: Tensor, labels: SoftClasses) -> Tensor:
        crops = range(self.config.teacher_crops)
        targets = targets_of_others(labels.classes, crops, len(embedding))
        return _cosines(embedding, self.prototypes.weight).argmax(-1) == targets.argmax(-1)

    def commit(self, batch: Batch, embedding: Tensor, labels: SoftClasses) -> None:
        def at(step: int) -> float:
            return cosine_momentum(self.config.momentum, step, self.total_steps)

        momentum = of_step(at, batch.step, self.center.device)
        follow(self.teacher, self.student, momentum)
        follow(self.teacher_prototypes, self.prototypes, momentum)
        center = processes.all_reduce_sum(labels.center.clone()) / processes.world_size()
        self.center.lerp_(center.to(self.center.dtype), 1 - self.config.center_momentum)


def _cosines(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the scores [..., K] of unit rows [..., D] with the normalised rows of `weight`."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ F.normalize(weight, dim=1).to(rows.dtype).T


def _head(width: int, hidden: int, bottleneck: int, norm: bool) -> nn.Module:
    """Return three linear layers with GELU between them; weights ~ N(0, 0.02²) truncated at ±2,
    biases 0."""
    layers: list[nn.Module] = []
    for before in (width, hidden):
        layers.append(nn.Linear(before, hidden))
        if norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers.append(nn.GELU())
    head = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
    for layer in head:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return head
