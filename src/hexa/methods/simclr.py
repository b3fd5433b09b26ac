"""SimCLR (Chen et al., 2020; F6, F16): recognise the other views of an image among all views of the batch."""

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

#: The clean pass of `clae` leaves running statistics alone.
_STILL = Branch("main", update=False)


class SimCLRConfig(EncoderConfig):
    """SimCLR v1 as published for ImageNet: a head of two layers, τ 0.1 (F6)."""

    name: Literal["simclr"] = "simclr"
    num_views: ClassVar = (2, None, "SimCLR compares views of an image")
    dim: PositiveInt = 128
    """Width of the embedding, D."""
    head_layers: int = pydantic.Field(default=2, ge=1, le=16)
    """Layers of the head, as wide as the features but for the last; each has a batch-norm. 2 in v1, 3 in v2."""
    temperature: PositiveFloat = 0.1
    """τ: 0.1 for large batches, 0.5 at CIFAR size."""
    adversarial_terms: Literal["query", "joint", "clae"] = "query"
    """What adversarial views are compared with (D20): the clean views of the batch, as labels (query); each other
    (joint); the clean view they were made of, gradient through both (clae: one more pass)."""


@dataclass(frozen=True, eq=False)
class SimCLRLabels(PseudoLabels):
    """Which image of the batch each is, and the batch as a dictionary.

    dictionary: [V, M, D], detached clean embeddings of the batch of all processes; for CPC [M, D, G, G], the patches.
    own: int64 [B], the image whose other view, or patch, is to be found. shown: [B, S], what other images a mixed view
    shows, which are not its negatives. crops: clean views, for `clae`.
    """

    dictionary: Tensor
    own: Tensor
    shown: Tensor
    crops: tuple[Tensor, ...] = ()

    def __getitem__(self, index: Index) -> SimCLRLabels:
        crops = tuple(crop[index] for crop in self.crops)
        return replace(self, own=self.own[index], shown=self.shown[index], crops=crops)

    def mixed(self, permutation: Tensor) -> tuple[SimCLRLabels, SimCLRLabels]:
        # of views mixed before, all that either of the two shows is shown now
        other = self.own[permutation]
        seen = torch.cat([self.shown, self.shown[permutation]], 1)
        first = replace(self, shown=torch.cat([seen, other[:, None]], 1))
        second = replace(self, own=other, shown=torch.cat([seen, self.own[:, None]], 1))
        return first, second


class SimCLR(Method[SimCLRLabels], config=SimCLRConfig):
    """NT-Xent: L = mean over views v ≠ w and images i of −log softmax of z_vi·z_wi/τ over all other views of the batch.

    The clean term goes back through all views, gathered over processes with their gradient. A hard example is a query
    against the detached clean batch: its image's other views are the positives, and the clean views of whatever it
    shows itself are not negatives. Mixed views, and a single view of each image, are always such queries; for other
    adversarial ones `adversarial_terms` has two more forms. The published code adds the means of two views, which is
    twice this loss; under LARS that matters to weight decay, batch-norms and biases alone.
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
    """Embeddings [V, B, D] of all processes, [V, W·B, D], with their gradient."""
    return processes.all_gather_with_gradient(embedding.transpose(0, 1)).transpose(0, 1)
