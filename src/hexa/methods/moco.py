"""MoCo v1 and v2 (He et al., 2020; Chen et al., 2020; F4): find a view's momentum key in a queue of
other keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import Share, field_error
from hexa.core import Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.core.method import check_queue
from hexa.nn.backbones import num_features
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder, mlp_head, unit
from hexa.nn.momentum import follow
from hexa.nn.shuffling import in_other_places
from hexa.ops.contrastive import info_nce, is_nearest
from hexa.runtime import processes
from hexa.runtime.random import Stream


class MoCoConfig(EncoderConfig):
    """MoCo-v2 by default. v1: head linear, temperature 0.07 and the views of v1 (F4)."""

    name: Literal["moco"] = "moco"
    num_views: ClassVar = (2, None, "MoCo compares two views")
    dim: PositiveInt = 128
    """Width of the embedding, D."""
    queue_size: PositiveInt = 65536
    """Number of keys in the queue, K; a multiple of the keys per step."""
    momentum: Share = 0.999
    """m of the key encoder (D9): 0.999 for a queue of 65,536, 0.99 for 4,096."""
    temperature: PositiveFloat = 0.2
    """Temperature τ: 0.2 in v2, 0.07 in v1, 0.1 at CIFAR size."""
    head: Literal["mlp", "linear"] = "mlp"
    """Projection head: mlp in v2, linear in v1."""
    symmetric: bool = False
    """Add the loss with the roles of the two views swapped, and enqueue both sets of keys (F4)."""
    bn_groups: PositiveInt = 1
    """Number of groups of images with separate batch statistics, over all processes; keys are
    shuffled between groups. 8 as published, 4 for small batches. 1 is one batch-norm (SyncBN over
    several processes) without shuffling."""
    mixed_positives: Literal["separate", "pair", "batch"] = "separate"
    """Keys that a mixed query is compared with, in addition to the queue (D11). separate: one of
    its two keys at a time; pair: both keys; batch: all keys of the batch."""

    @property
    def keys_per_image(self) -> int:
        return 2 if self.symmetric else 1

    def check(self, setting: Setting) -> None:
        super().check(setting)
        keys = setting.batch_size * self.keys_per_image
        if self.queue_size % keys:
            below = self.queue_size // keys * keys
            remedy = f"use {below} or {below + keys}" if below else f"use {keys}"
            raise field_error(
                "method.queue_size",
                f"{self.queue_size} is not a multiple of the {keys} keys per step; {remedy}",
            )


def completed_by(fields: dict[str, Any]) -> pydantic.BeforeValidator:
    """Validator that fills missing fields of a nested config with these defaults."""

    def fill(value: Any) -> Any:
        return {**fields, **value} if isinstance(value, dict) else value

    return pydantic.BeforeValidator(fill)


@dataclass(frozen=True, eq=False)
class MoCoLabels(PseudoLabels):
    """The key of every anchor's image, and additional keys for mixed queries.

    keys: [V, B, D], keys of the images `own` [B], which are positions in the global batch.
    batch_keys: [V, M, D], keys of all M images of the global batch, for `mixed_positives: batch`.
    pairs: True for `mixed_positives: pair`.
    partner: `keys` and `own` of the second image, after mixing with `pairs`.
    is_mixed: True after mixing.
    """

    keys: Tensor
    own: Tensor
    pairs: bool = False
    batch_keys: Tensor | None = None
    partner: tuple[Tensor, Tensor] | None = None
    is_mixed: bool = False

    def __getitem__(self, index: Index) -> MoCoLabels:
        partner = self.partner
        if partner is not None:
            partner = (partner[0][:, index], partner[1][index])
        return replace(self, keys=self.keys[:, index], own=self.own[index], partner=partner)

    def mixed(self, permutation: Tensor) -> tuple[MoCoLabels, MoCoLabels]:
        first = replace(self, is_mixed=True)
        second = first[permutation]
        if not self.pairs:
            return first, second
        of_second = (second.keys, second.own)
        of_first = (first.keys, first.own)
        return replace(first, partner=of_second), replace(second, partner=of_first)

    def further_similarities(self, query: Tensor) -> Tensor | None:
        """Return similarities [V, B, E] of queries [V, B, D] to the additional keys, −∞ for keys of
        the same image."""
        if self.partner is not None:
            keys, own = self.partner
            scores = (query * keys[: len(query)]).sum(-1, keepdim=True)
            return scores.masked_fill((own == self.own)[:, None], -torch.inf)
        if self.batch_keys is not None and self.is_mixed:
            scores = query @ self.batch_keys[: len(query)].mT
            every = torch.arange(scores.shape[-1], device=scores.device)
            return scores.masked_fill(every == self.own[:, None], -torch.inf)
        return None


class MoCo(Method[MoCoLabels], config=MoCoConfig):
    """Momentum contrast: L = −log softmax over [k⁺, queue] of q·k/τ, at k⁺ (F3, F4).

    The key encoder is a moving average of the query encoder's parameters; it normalises with its
    own batch statistics. Keys are encoded once per step, from clean views, and enter the queue
    after all terms of the step (F16). Views after the second are further queries for the key of the
    second view (multi-crop). The loss is the mean over queries, doubled if symmetric.

    If a query and its key are normalised with the statistics of the same few images, these
    statistics reveal the match (F5, F30). Set `bn_groups` > 1 on any number of processes, so that
    keys are shuffled between groups. With one group (SyncBN over processes) all images share
    statistics and nothing is shuffled.
    """

    is_static = True
    loss_per_image = True

    def __init__(self, config: MoCoConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        # ln(1 + K) per published term, if the encoder maps all images to one point
        self.chance_loss = config.keys_per_image * math.log1p(config.queue_size)
        keys = setting.batch_size * config.keys_per_image
        self._epoch_keys = setting.steps_per_epoch * keys
        self._half = math.ceil(setting.steps_per_epoch / 2) * keys
        make_head = mlp_head if config.head == "mlp" else nn.Linear
        head = make_head(num_features(backbone), config.dim)
        self.query, self.key = Encoder.with_twin(backbone, head, setting, config.bn_groups)
        generator = Stream(setting.seed).child("queue").generator()
        draw = torch.randn(config.queue_size, config.dim, generator=generator)
        self.queue = nn.Buffer(F.normalize(draw))  # [K, D]
        self.queue_pointer = nn.Buffer(torch.zeros(1, dtype=torch.long))

    @property
    def backbone(self) -> nn.Module:
        return self.query.backbone

    def notes(self) -> list[str]:
        size = self.config.queue_size
        if size <= self._epoch_keys:
            return []
        return [
            f"the queue holds {size:,} keys, but an epoch makes only {self._epoch_keys:,}: "
            "older keys of an image are among its negatives; half an epoch "
            f"(--method.queue_size {self._half}) was better on 2,000 images"
        ]

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the query view (both views if symmetric) and all views after the second; keys are
        labels (F16)."""
        return batch.crops[: self.config.keys_per_image] + batch.crops[2:]

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        return self.query.embed(crops, branch, together=False)  # as the published code does

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> MoCoLabels:
        views = batch.crops[1::-1] if self.config.symmetric else batch.crops[1:2]
        keys = [
            self._keys(view, batch.stream.child("key shuffle", number))
            for number, view in enumerate(views)
        ]
        # views after the second are queries for the first key
        keys += keys[:1] * (len(batch.crops) - 2)
        own = torch.arange(batch.rows.start, batch.rows.stop, device=keys[0].device)
        positives = self.config.mixed_positives
        every = None
        if positives == "batch":
            every = torch.stack([processes.all_gather(key) for key in keys])
        return MoCoLabels(torch.stack(keys), own, positives == "pair", every)

    def _keys(self, crops: Tensor, stream: Stream) -> Tensor:
        """Return keys [B, D]; with groups, images are shuffled so that no key shares its query's
        statistics (F5)."""

        def encode(images: Tensor) -> Tensor:
            with use_branch(self.key):
                return unit(self.key(images))

        if self.config.bn_groups > 1:
            return in_other_places(crops, encode, stream)
        return encode(crops)

    def loss(self, embedding: Tensor, labels: MoCoLabels) -> Tensor:
        further = labels.further_similarities(embedding)
        keys = labels.keys[: len(embedding)]
        loss = info_nce(embedding, keys, self.queue, self.config.temperature, further)
        # if the loss is symmetric, the two published terms are added, not averaged
        return self.config.keys_per_image * loss

    def correct(self, embedding: Tensor, labels: MoCoLabels) -> Tensor:
        further = labels.further_similarities(embedding)
        keys = labels.keys[: len(embedding)]
        return is_nearest(embedding, keys, self.queue, further)

    def commit(self, batch: Batch, embedding: Tensor, labels: MoCoLabels) -> None:
        length = len(self.queue)
        own = labels.keys[: self.config.keys_per_image]
        keys = torch.cat([processes.all_gather(key) for key in own]).to(self.queue.dtype)
        check_queue(length, len(keys), wraps=True)
        follow(self.key, self.query, self.config.momentum)
        # positions are computed on the device: reading the pointer would synchronise
        places = torch.arange(len(keys), device=keys.device)
        self.queue.index_copy_(0, (self.queue_pointer + places) % length, keys)
        self.queue_pointer.add_(len(keys)).remainder_(length)
