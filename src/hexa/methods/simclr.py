"""SimCLR (Chen et al., 2020; F6, F16): find the other views of an image among all views of the
batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from hexa.core import Batch, Branch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, normalized_layers
from hexa.ops.contrastive import finds_other_view, nt_xent
from hexa.runtime import processes

#: Branch of the clean pass of `clae`, which does not update running statistics.
_STILL = Branch("main", update=False)


class SimCLRConfig(EncoderConfig):
    """SimCLR v1 as published for ImageNet: a head with two layers, τ = 0.1 (F6)."""

    name: Literal["simclr"] = "simclr"
    num_views: ClassVar = (2, None, "SimCLR compares views of an image")
    dim: PositiveInt = 128
    """Width of the embedding, D."""
    head_layers: int = pydantic.Field(default=2, ge=1, le=16)
    """Number of layers of the head: 2 in v1, 3 in v2. All but the last are as wide as the features;
    each has a batch-norm."""
    temperature: PositiveFloat = 0.1
    """Temperature τ: 0.1 for large batches, 0.5 at CIFAR size."""
    adversarial_terms: Literal["query", "joint", "clae"] = "query"
    """Views that adversarial views are compared with (D20). query: the detached clean views of the
    batch; joint: each other; clae: their clean views, with gradient through both (one extra
    pass of the whole batch, also with `training.accumulate`, in fp32)."""


@dataclass(frozen=True, eq=False)
class SimCLRLabels(PseudoLabels):
    """The index of each image in the batch, and the clean embeddings of the batch.

    dictionary: [V, M, D], detached clean embeddings of the batch of all processes; for CPC [M, D,
    G, G], the patches.
    own: int64 [B], index of the image whose other view, or patch, is the target.
    shown: [B, S], indices of all images that a mixed view shows, which are not its negatives.
    crops: clean views, for `clae`.
    """

    dictionary: Tensor
    own: Tensor
    shown: Tensor
    crops: tuple[Tensor, ...] = ()

    def __getitem__(self, index: Index) -> SimCLRLabels:
        crops = tuple(crop[index] for crop in self.crops)
        return replace(self, own=self.own[index], shown=self.shown[index], crops=crops)

    def mixed(self, permutation: Tensor) -> tuple[SimCLRLabels, SimCLRLabels]:
        # a view that is mixed again shows all images of both
        other = self.own[permutation]
        seen = torch.cat([self.shown, self.shown[permutation]], 1)
        first = replace(self, shown=torch.cat([seen, other[:, None]], 1))
        second = replace(self, own=other, shown=torch.cat([seen, self.own[:, None]], 1))
        return first, second


class SimCLR(Method[SimCLRLabels], config=SimCLRConfig):
    """NT-Xent: L = mean over views v ≠ w and images i of −log softmax of z_vi·z_wi/τ over all other
    views of the batch.

    The clean term back-propagates through all views, which are gathered over processes with their
    gradient. A hard example is a query against the detached clean batch: the other views of its
    image are positives, and the clean views of all images that it shows are not negatives. Mixed
    views, and batches with a single view per image, always use this form; for other adversarial
    views, `adversarial_terms` offers two more. The published code adds the means of two views,
    which is twice this loss; under LARS this matters only for weight decay, batch-norms and biases.
    """

    encoder: Encoder
    labels_from_embedding = True
    embeds_plainly = True
    is_static = True

    def __init__(
        self,
        config: SimCLRConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        widths = [num_features(backbone)] * config.head_layers + [config.dim]
        head = normalized_layers(widths, last_weight=True)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        # all other views equally likely
        self.chance_loss = math.log(setting.num_crops * setting.batch_size - 1)

    def pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> SimCLRLabels:
        assert embedding is not None, "the dictionary is made of the clean embedding"
        own = torch.arange(batch.rows.start, batch.rows.stop, device=embedding.device)
        crops = batch.crops if self.config.adversarial_terms == "clae" else ()
        return SimCLRLabels(_gathered(embedding.detach()), own, own.new_empty(len(own), 0), crops)

    def clean_loss(
        self,
        embedding: Tensor,
        labels: SimCLRLabels,
    ) -> Tensor:
        count = embedding.shape[1]
        own = processes.rank() * count + torch.arange(count, device=embedding.device)
        return nt_xent(embedding, _gathered(embedding), own, own[:, None], self.config.temperature)

    def loss(
        self,
        embedding: Tensor,
        labels: SimCLRLabels,
    ) -> Tensor:
        alone = labels.shown.shape[1] or len(embedding) == 1
        if self.config.adversarial_terms == "joint" and not alone:
            return self.clean_loss(embedding, labels)
        if self.config.adversarial_terms == "clae" and not alone:
            clean = self.encoder.embed(labels.crops[: len(embedding)], _STILL)
            pairs = zip(clean, embedding, strict=True)
            losses = [self.clean_loss(torch.stack(pair), labels).mean(0) for pair in pairs]
            return torch.stack(losses)
        temperature = self.config.temperature
        return nt_xent(embedding, labels.dictionary, labels.own, labels.shown, temperature)

    def correct(
        self,
        embedding: Tensor,
        labels: SimCLRLabels,
    ) -> Tensor:
        return finds_other_view(embedding, labels.dictionary, labels.own, labels.shown)


def _gathered(embedding: Tensor) -> Tensor:
    """Gather embeddings [V, B, D] of all processes to [V, W·B, D], with their gradient."""
    return processes.all_gather_with_gradient(embedding.transpose(0, 1)).transpose(0, 1)
