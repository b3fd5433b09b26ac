"""Instance discrimination (Wu et al., CVPR 2018; F29): recognise an image among all others, by memory."""

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
from hexa.nn.encoder import Encoder, linear_head
from hexa.nn.instance_bank import InstanceBank, partition
from hexa.ops.contrastive import info_nce, nce


class MemoryConfig(EncoderConfig):
    """The fields of a method that tells an image from all others by a memory of them."""

    dim: int = pydantic.Field(default=128, gt=0)
    """Width of the embedding, D."""
    objective: Literal["nce", "softmax"] = "nce"
    """nce: against random images; softmax: against all of them, for small data (published for CIFAR)."""
    num_negatives: int = pydantic.Field(default=4096, gt=0)
    """nce only: random images per step, n, shared by the images of the step."""
    temperature: float = pydantic.Field(default=0.07, gt=0)
    """τ; 0.1 at CIFAR size."""
    bank_momentum: float = pydantic.Field(default=0.5, ge=0, lt=1)
    """μ of the memory."""


class InstDiscConfig(MemoryConfig):
    """Instance discrimination as published for ImageNet: NCE with 4096 negatives, τ 0.07."""

    name: Literal["instdisc"] = "instdisc"
    num_views: ClassVar = (1, 1, "instance discrimination compares a view with the memory")


@dataclass(frozen=True, eq=False)
class InstanceLabels(PseudoLabels):
    """The memory of each image, and what it is told apart from. keys: [B, D], others: [n, D]."""

    keys: Tensor
    others: Tensor

    def __getitem__(self, index: Index) -> InstanceLabels:
        return replace(self, keys=self.keys[index])

    def nearest(self, embedding: Tensor) -> Tensor:
        """Whether of all these no memory is nearer to an embedding [V, B, D] than its own; bool [V, B]."""
        own = (embedding * self.keys).sum(-1)
        # its own may be among the others, where rounding must not tell it from itself
        return own >= (embedding @ self.others.to(embedding.dtype).T).amax(-1) - 1e-6


class Memory(InstanceBank):
    """A bank of all images with its task: to recognise the memory of an image among others.

    L = −log P(i|z), P(i|z) = softmax over all images' memories m of m·z/τ, or its noise-contrastive estimate
    """

    def __init__(self, config: MemoryConfig, data_size: int, seed: int) -> None:
        super().__init__(data_size, config.dim, config.bank_momentum, seed)
        self.config = config
        self.partition = partition(self.rows, config.temperature)

    @property
    def chance_loss(self) -> float | None:
        """ln N with the softmax: all images equally likely."""
        return math.log(len(self.rows)) if self.config.objective == "softmax" else None

    def labels(self, batch: Batch, clean: Tensor | None) -> InstanceLabels:
        """The memories of the images of a batch; of images of another data set, their clean embedding [B, D]."""
        if batch.known:
            keys = self.rows[batch.index]
        else:
            assert clean is not None, "images of another data set need an embedding"
            keys = clean.to(self.rows.dtype)
        if self.config.objective == "softmax":
            return InstanceLabels(keys, self.rows)
        return InstanceLabels(keys, self.drawn(self.config.num_negatives, batch.stream.child("negatives")))

    def loss(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        """L [V, B] of embeddings [V, B, D]."""
        temperature = self.config.temperature
        if self.config.objective == "softmax":
            return info_nce(embedding, labels.keys, labels.others, temperature, positive_included=True)
        return nce(embedding, labels.keys, labels.others, temperature, self.partition, len(self.rows))


class InstDisc(Method[InstanceLabels], config=InstDiscConfig):
    """The loss is that of `Memory`, for a view.

    The memory is written from clean views after the step; hard examples are told apart by what it held before.
    The published code draws negatives for each image; here all images of a step share them, which makes the
    comparison one product of matrices.
    """

    def __init__(self, config: InstDiscConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        head = linear_head(num_features(backbone), config.dim)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        self.bank = Memory(config, setting.data_size, setting.seed)

    @property
    def chance_loss(self) -> float | None:
        return self.bank.chance_loss

    def notes(self) -> list[str]:
        return [self.bank.note()]

    @torch.no_grad()
    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> InstanceLabels:
        return self.bank.labels(batch, None if embedding is None else embedding[0])

    def loss(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        return self.bank.loss(embedding, labels)

    def correct(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        """Whether no other image's memory is nearer."""
        return labels.nearest(embedding)

    @torch.no_grad()
    def commit(self, batch: Batch, embedding: Tensor | None, labels: InstanceLabels) -> None:
        assert embedding is not None
        self.bank.update(batch.index[: embedding.shape[1]], embedding[0])
