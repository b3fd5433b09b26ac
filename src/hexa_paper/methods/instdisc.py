"""Instance discrimination (Wu et al., CVPR 2018; F29): recognise an image among all images, in a memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.core import Batch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa.ops.contrastive import info_nce
from hexa.runtime import processes
from hexa.runtime.random import Stream
from hexa_paper.ops.contrastive import nce


class MemoryConfig(EncoderConfig):
    """The fields of a method that tells an image from all others by a memory of them."""

    dim: PositiveInt = 128
    """Width of the embedding, D."""
    objective: Literal["nce", "softmax"] = "nce"
    """nce: against random images; softmax: against all of them, for small data (published for CIFAR)."""
    num_negatives: PositiveInt = 4096
    """nce only: random images per step, n, shared by the images of the step."""
    temperature: PositiveFloat = 0.07
    """τ; 0.1 at CIFAR size."""
    bank_momentum: float = pydantic.Field(default=0.5, ge=0, lt=1)
    """μ of the memory."""


class InstDiscConfig(MemoryConfig):
    """Instance discrimination as published for ImageNet: NCE with 4096 negatives, τ 0.07."""

    name: Literal["instdisc"] = "instdisc"
    num_views: ClassVar = (1, 1, "instance discrimination compares a view with the memory")


@dataclass(frozen=True, eq=False)
class InstanceLabels(PseudoLabels):
    """The memory of each image, and the negatives. keys: [B, D], others: [n, D]."""

    keys: Tensor
    others: Tensor

    def __getitem__(self, index: Index) -> InstanceLabels:
        return replace(self, keys=self.keys[index])

    def nearest(self, embedding: Tensor) -> Tensor:
        """True where the memory of its own image is the one nearest to an embedding [V, B, D]; bool [V, B]."""
        # its own may be among the others, where rounding must not tell it from itself
        return (embedding * self.keys).sum(-1) >= (
            embedding @ self.others.to(embedding.dtype).T
        ).amax(-1) - 1e-6


class Memory(nn.Module):
    """A unit vector m_i per image, and the task to recognise an image's own among others.

    m_i is random at first, then m_i ← unit(μ·m_i + (1 − μ)·z_i) whenever image i is seen. The loss is −log P(i|z), with
    P(i|z) = softmax over memories m of m·z/τ, or its noise-contrastive estimate. Buffer: rows [N, D], the same on every
    process.

    drawn: compare with `num_negatives` random memories, else with those of all images.
    """

    def __init__(
        self,
        config: MemoryConfig,
        data_size: int,
        seed: int,
        drawn: bool,
    ) -> None:
        super().__init__()
        self.config = config
        self.drawn = drawn
        draw = torch.randn(
            data_size, config.dim, generator=Stream(seed).child("instance bank").generator()
        )
        self.rows = nn.Buffer(F.normalize(draw))
        # Z = N · E[exp(m·q/τ)] for any unit vector q. The published code takes the mean over its first batch; since
        # rows are isotropic, the mean over the axes is the same number with less noise.
        self.partition = data_size * float((self.rows / config.temperature).exp().mean())

    def note(self) -> str:
        """A line for users about its size."""
        count, dim = self.rows.shape
        return f"memory bank of {count:,} images × {dim} on every process, {count * dim * 4 / 1e6:,.1f} MB"

    def labels(self, batch: Batch, clean: Tensor | None) -> InstanceLabels:
        """The memories of the images of a batch; of images of another data set, their clean embedding [1, B, D]."""
        if batch.known:
            keys = self.rows[batch.index]
        else:
            assert clean is not None, "images of another data set need an embedding"
            keys = clean[0].to(self.rows.dtype)
        if not self.drawn:
            return InstanceLabels(keys, self.rows)
        # with replacement, the same for all images and processes
        generator = batch.stream.child("negatives").generator()
        places = torch.randint(len(self.rows), (self.config.num_negatives,), generator=generator)
        return InstanceLabels(keys, self.rows[places.to(self.rows.device, non_blocking=True)])

    def loss(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        """The loss [V, B] of embeddings [V, B, D]."""
        temperature = self.config.temperature
        if self.config.objective == "softmax":
            return info_nce(
                embedding, labels.keys, labels.others, temperature, positive_included=not self.drawn
            )
        return nce(
            embedding, labels.keys, labels.others, temperature, self.partition, len(self.rows)
        )

    def update(self, batch: Batch, clean: Tensor) -> None:
        """Follow the clean embedding [V, b, D] of a batch's first view; every process calls it."""
        index = processes.all_gather(batch.index[: clean.shape[1]])
        embedding = processes.all_gather(clean[0]).to(self.rows.dtype)
        # an image that replaces an unreadable one occurs twice; all processes must keep the same embedding of it
        last = (
            (index[:, None] == index)
            * torch.arange(len(index), dtype=torch.int32, device=index.device)
        ).amax(1)
        self.rows[index] = F.normalize(
            self.rows[index].lerp(embedding[last], 1 - self.config.bank_momentum)
        )


class InstDisc(Method[InstanceLabels], config=InstDiscConfig):
    """The loss is that of `Memory`, for a view.

    The memory is written from clean views after the step; hard examples are compared with its earlier content.
    The published code draws negatives for each image; here all images of a step share them, which makes the
    comparison one product of matrices.
    """

    loss_per_image = True

    def __init__(
        self,
        config: MemoryConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config: MemoryConfig = config
        head = nn.Linear(num_features(backbone), config.dim)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        self.bank = Memory(config, setting.data_size, setting.seed, drawn=config.objective == "nce")
        #: With the softmax all images are equally likely; NCE's depends on more.
        self.chance_loss = None if self.bank.drawn else math.log(setting.data_size)

    def notes(self) -> list[str]:
        return [self.bank.note()]

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> InstanceLabels:
        return self.bank.labels(batch, embedding)

    def loss(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        return self.bank.loss(embedding, labels)

    def correct(self, embedding: Tensor, labels: InstanceLabels) -> Tensor:
        """True where an embedding is nearest to the memory of its own image; bool [V, B]."""
        return labels.nearest(embedding)

    def commit(
        self,
        batch: Batch,
        embedding: Tensor,
        labels: InstanceLabels,
    ) -> None:
        self.bank.update(batch, embedding)
