"""MoCo v1 and v2 (REFERENCE §2): recognise a view's momentum key among a queue of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import ConfigError
from hexa.core import Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder, linear_head, mlp_head, unit
from hexa.nn.momentum import follow
from hexa.ops.contrastive import info_nce, is_nearest
from hexa.runtime import processes
from hexa.runtime.random import Stream


class MoCoConfig(EncoderConfig):
    """MoCo-v2 by default; v1 is head linear, temperature 0.07 and the views of v1 (REFERENCE §2.1)."""

    name: Literal["moco"] = "moco"
    num_views: ClassVar = (2, 2, "MoCo compares two views")
    dim: int = pydantic.Field(default=128, gt=0)
    """Width of the embedding, D."""
    queue_size: int = pydantic.Field(default=65536, gt=0)
    """Keys in the queue, K; divisible by the keys of a step."""
    momentum: float = pydantic.Field(default=0.999, ge=0, le=1)
    """m of the key encoder (D9: 0.999 for a queue of 65,536, 0.99 for 4,096)."""
    temperature: float = pydantic.Field(default=0.2, gt=0)
    """τ: 0.2 in v2, 0.07 in v1, 0.1 at CIFAR size."""
    head: Literal["mlp", "linear"] = "mlp"
    """mlp is v2's, linear is v1's."""
    symmetric: bool = False
    """Add the loss with the roles of the two views swapped, and enqueue both sets of keys (REFERENCE §2.6)."""
    bn_groups: int = pydantic.Field(default=1, gt=0)
    """Groups of images with batch statistics of their own, over all processes, between which keys are shuffled: 8 as
    published, 4 for small batches. 1 is one batch-norm, SyncBN over several processes, and nothing to shuffle."""
    mixed_positives: Literal["separate", "pair", "batch"] = "separate"
    """The dictionary of a mixed query: one of each key and the queue; both keys and the queue; all keys of the batch
    and the queue (D11)."""

    @property
    def keys_per_image(self) -> int:
        return 2 if self.symmetric else 1

    def check(self, setting: Setting) -> None:
        super().check(setting)
        keys = setting.batch_size * self.keys_per_image
        if self.queue_size % keys:
            below, above = self.queue_size // keys * keys, (self.queue_size // keys + 1) * keys
            remedy = f"use {below} or {above}" if below else f"use {above}"
            message = f"{self.queue_size} is not divisible by the {keys} keys of a step; {remedy}"
            raise ConfigError([("method.queue_size", message)])


@dataclass(frozen=True, eq=False)
class MoCoLabels(PseudoLabels):
    """The key of every anchor's image, and what a mixed query finds in its dictionary beside it.

    keys: [V, B, D]. partner: [V, B, D], a second key (`pair`), not_self: [B], whether it is another image's.
    batch_keys: [V, M, D], all keys of the batch over all processes (`batch`), own: [B], which of them is this image's.
    """

    keys: Tensor
    positives: Literal["separate", "pair", "batch"] = "separate"
    partner: Tensor | None = None
    not_self: Tensor | None = None
    batch_keys: Tensor | None = None
    own: Tensor | None = None
    is_mixed: bool = False

    def __getitem__(self, index: Index) -> MoCoLabels:
        return replace(
            self,
            keys=self.keys[:, index],
            partner=None if self.partner is None else self.partner[:, index],
            not_self=None if self.not_self is None else self.not_self[index],
            own=None if self.own is None else self.own[index],
        )

    def mixed(self, permutation: Tensor) -> tuple[MoCoLabels, MoCoLabels]:
        if self.positives == "pair":
            other = self.keys[:, permutation]
            moved = permutation != torch.arange(len(permutation), device=permutation.device)
            return (
                replace(self, partner=other, not_self=moved),
                replace(self, keys=other, partner=self.keys, not_self=moved),
            )
        # `batch` needs to know of which image each key is, which reordering keeps, and that these queries are mixed
        mixed = replace(self, is_mixed=True)
        return mixed, mixed[permutation]

    def similarities_beside(self, query: Tensor) -> Tensor | None:
        """Similarities of a query [V, B, D] to what is in its dictionary beside its key and the queue; [V, B, E]."""
        if self.partner is not None and self.not_self is not None:
            pair = (query * self.partner).sum(-1, keepdim=True)
            return pair.masked_fill(~self.not_self[:, None], -torch.inf)
        if self.is_mixed and self.batch_keys is not None and self.own is not None:
            every = query @ self.batch_keys.mT
            own = torch.arange(every.shape[-1], device=every.device) == self.own[:, None]
            return every.masked_fill(own, -torch.inf)
        return None


class MoCo(Method[MoCoLabels], config=MoCoConfig):
    """Momentum contrast: L = −log softmax over [k⁺, queue] of q·k/τ, at k⁺ (REFERENCE §1.2, §2.3).

    The key encoder follows the query encoder's parameters by momentum and normalises with its own batch statistics.
    Keys are encoded once, from clean views; they enter the queue after all terms of the step (REFERENCE §5.6).

    A query and its key normalised with the statistics of the same few images know each other by them (REFERENCE §2.4,
    §10.1). So choose `bn_groups` > 1, whatever the number of processes: keys then change places between groups. With
    one group, which is SyncBN on several processes, all are normalised alike and nothing is shuffled.
    """

    def __init__(self, config: MoCoConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self.shuffles = config.bn_groups > 1
        head = (mlp_head if config.head == "mlp" else linear_head)(num_features(backbone), config.dim)
        self.query, self.key = Encoder.with_twin(backbone, head, setting, config.bn_groups)
        draw = torch.randn(config.queue_size, config.dim, generator=Stream(setting.seed).child("queue").generator())
        self.register_buffer("queue", F.normalize(draw))  # [K, D]
        self.register_buffer("queue_pointer", torch.zeros(1, dtype=torch.long))
        self.queue: Tensor
        self.queue_pointer: Tensor

    @property
    def backbone(self) -> nn.Module:
        return self.query.backbone

    @property
    def chance_loss(self) -> float:
        """ln(1 + K) of an encoder that maps everything to one point, per published term."""
        return self.config.keys_per_image * float(torch.log1p(torch.tensor(float(self.config.queue_size))))

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        """The query view only: keys are labels (REFERENCE §5.6); both views if symmetric."""
        return batch.crops[: self.config.keys_per_image]

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        return self.query.embed(crops, branch, together=False)  # as the published code does

    @torch.no_grad()
    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> MoCoLabels:
        views = batch.crops[1::-1] if self.config.symmetric else batch.crops[1:2]
        shuffles = [batch.stream.child("key shuffle", view) for view in range(len(views))]
        keys = [self._encode_keys(view, stream) for view, stream in zip(views, shuffles, strict=True)]
        labels = MoCoLabels(torch.stack(keys), self.config.mixed_positives)
        if self.config.mixed_positives != "batch":
            return labels
        own = processes.rank() * len(batch) + torch.arange(len(batch), device=keys[0].device)
        return replace(labels, batch_keys=torch.stack([processes.all_gather(k) for k in keys]), own=own)

    def _encode_keys(self, crops: Tensor, stream: Stream) -> Tensor:
        """Keys [B, D] of crops; images change places, among groups and processes, while they are encoded.

        So no group normalises a key together with the same images as its query (shuffling BN, REFERENCE §2.4).
        """
        if not self.shuffles:
            with use_branch(self.key):
                return unit(self.key(crops))
        size, begin = len(crops), processes.rank() * len(crops)
        permutation = torch.randperm(size * processes.world_size(), generator=stream.generator())
        permutation = permutation.to(crops.device, non_blocking=True)
        mine = processes.all_gather(crops)[permutation[begin : begin + size]]
        if crops.is_contiguous(memory_format=torch.channels_last):
            mine = mine.contiguous(memory_format=torch.channels_last)
        with use_branch(self.key):
            keys = unit(self.key(mine))
        shuffled = processes.all_gather(keys)
        back = torch.empty_like(permutation)
        back[permutation] = torch.arange(len(permutation), device=crops.device)
        return shuffled[back[begin : begin + size]]

    def loss(self, embedding: Tensor, labels: MoCoLabels) -> Tensor:
        beside = labels.similarities_beside(embedding)
        # two published terms are added, not averaged, when the loss is symmetric
        return len(embedding) * info_nce(embedding, labels.keys, self.queue, self.config.temperature, beside)

    def correct(self, embedding: Tensor, labels: MoCoLabels) -> Tensor:
        return is_nearest(embedding, labels.keys, self.queue, labels.similarities_beside(embedding))

    @torch.no_grad()
    def commit(self, batch: Batch, embedding: Tensor | None, labels: MoCoLabels) -> None:
        follow(self.key, self.query, self.config.momentum)
        keys = torch.cat([processes.all_gather(keys) for keys in labels.keys]).to(self.queue.dtype)
        # positions are computed on the device: reading the pointer would make the host wait for it
        positions = (self.queue_pointer + torch.arange(len(keys), device=keys.device)) % len(self.queue)
        self.queue.index_copy_(0, positions, keys)
        self.queue_pointer.add_(len(keys)).remainder_(len(self.queue))
