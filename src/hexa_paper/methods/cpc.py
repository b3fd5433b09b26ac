"""CPC-v2 (Hénaff et al., ICML 2020; F29): predict the patches below from those above, among all others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from hexa.config import field_error
from hexa.core import Batch, Branch, EncoderConfig, Method, Setting
from hexa.methods.simclr import SimCLRLabels
from hexa.nn.backbones import num_features
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder, unit
from hexa.runtime import processes
from hexa_paper.ops import puzzles as tiles
from hexa_paper.ops.contrastive import patch_nce


class CPCConfig(EncoderConfig):
    """CPC-v2 as published for ImageNet: 6 × 6 patches of 80 pixels in views of 260, the third row below predicted."""

    name: Literal["cpc"] = "cpc"
    num_views: ClassVar = (1, 1, "CPC predicts patches of a view from others of the same view")
    patch: PositiveInt = 80
    """Side of a patch in pixels."""
    stride: PositiveInt = 36
    """Pixels from one patch to the next; less than `patch`, so that they overlap."""
    ahead: tuple[pydantic.PositiveInt, ...] = pydantic.Field(
        default=(3,), min_length=1, max_length=16
    )
    """Distances in rows from the context to the predicted patches below it, one linear head for each."""
    dim: PositiveInt = 64
    """Width in which predictions and patches are compared, D."""
    hidden: PositiveInt = 256
    """Width inside the layers of the context network."""
    layers: int = pydantic.Field(default=5, gt=0, le=64)
    """Layers of the context network, each of which sees one more row above."""
    scale: PositiveFloat = 0.1
    """Factor of the products of predictions and patches."""

    def grid(self, size: int) -> int:
        """Patches a side of a view of `size` pixels, G."""
        return (size - self.patch) // self.stride + 1

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.view_size is not None and self.grid(setting.view_size) <= max(self.ahead):
            farthest = max(self.ahead)
            needed = self.patch + farthest * self.stride
            lacking = f"a patch of {self.patch} pixels {farthest} rows below another"
            remedy = f"use a views.size of at least {needed}, or smaller patches (method.patch, method.stride)"
            message = f"views of {setting.view_size} pixels lack {lacking}; {remedy}"
            raise field_error("views.size", message)


class ContextLayer(nn.Module):
    """x + g(x) of maps [B, F, G, G]: g sees a place's own row and the one above it, and a column to either side."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, (1, 3), padding=(0, 1)),
            nn.ZeroPad2d((0, 0, 1, 0)),
            nn.Conv2d(hidden, hidden, (2, 1)),
            nn.ReLU(),
            nn.Conv2d(hidden, width, 1),
        )

    def forward(self, maps: Tensor) -> Tensor:
        given: Tensor = self.layers(maps)
        return maps + given


class PatchHead(nn.Module):
    """Features of the patches of images [B, F, G, G] -> the patches as they are compared, and what is predicted k rows
    below each of them for every k: [B, 1 + K, D, G, G]. A prediction sees its own row of patches and those above.
    """

    def __init__(self, width: int, config: CPCConfig) -> None:
        super().__init__()
        layers = [ContextLayer(width, config.hidden) for _ in range(config.layers)]
        self.context = nn.Sequential(*layers, nn.ReLU())
        self.patches = nn.Conv2d(width, config.dim, 1)
        self.predictions = nn.ModuleList(nn.Conv2d(width, config.dim, 1) for _ in config.ahead)
        self.scale = config.scale

    def forward(self, features: Tensor) -> Tensor:
        context = self.context(features)
        predicted = [self.scale * below(context) for below in self.predictions]
        return torch.stack([self.patches(features), *predicted], 1)


class CPC(Method[SimCLRLabels], config=CPCConfig):
    """L = mean over the predicted patches of −log softmax over all patches t of the batch of s·p_(r,c)·t, at t_(r+k,c).

    Every patch goes through the backbone by itself; p is linear in a context that sees its row and those above. The
    clean term goes back through predictions and patches, gathered over processes with their gradient, as published:
    patches that were labels alone would leave their projection as it was drawn. A hard example is predictions against
    the detached clean patches, so that an attack cannot move what is to be found; its pseudo-labels are computed once.
    A mixed view is to predict the patches of both images, by area as everywhere: a box is pasted where it was cut, so
    over the grid the patches it covers are its share. The published code augments each patch on its own; here patches
    of a view share their colours.
    """

    labels_from_embedding = True

    def __init__(
        self,
        config: CPCConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        head = PatchHead(num_features(backbone), config)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        #: All patches of a batch equally likely.
        self.chance_loss = None
        if setting.view_size is not None:
            count = config.grid(setting.view_size) ** 2
            self.chance_loss = math.log(setting.batch_size * count)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Patches and predictions of each image, one behind the other: [1, B, (1 + K)·D·G²]."""
        (view,) = crops
        patches = tiles.patches(view, self.config.patch, self.config.stride)
        with use_branch(self.encoder, branch, len(view)):
            features = self.encoder.features(patches.flatten(0, 2))
            of_places = features.view(*patches.shape[:3], -1)
            maps: Tensor = self.encoder.head(of_places.movedim(-1, 1))
        return maps.flatten(1)[None]

    def _parts(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Patches [V, B, D, G, G] and predictions [V, B, K, D, G, G] of an embedding."""
        groups = 1 + len(self.config.ahead)
        dim = self.config.dim
        area = embedding.shape[-1] // (groups * dim)
        grid = math.isqrt(area)
        parts = embedding.view(*embedding.shape[:2], groups, dim, grid, grid)
        return parts[:, :, 0], parts[:, :, 1:]

    def directions(self, embedding: Tensor) -> Tensor:
        """The mean patch of each image."""
        patches, _ = self._parts(embedding)
        return unit(patches.mean((-1, -2)))

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> SimCLRLabels:
        assert embedding is not None, "the patches are those of the clean embedding"
        own = torch.arange(batch.rows.start, batch.rows.stop, device=embedding.device)
        patches, _ = self._parts(embedding)
        everywhere = processes.all_gather(patches[0].detach())
        nothing = own.new_empty(len(own), 0)
        return SimCLRLabels(everywhere, own, nothing)

    def clean_loss(self, embedding: Tensor, labels: SimCLRLabels) -> Tensor:
        patches, _ = self._parts(embedding)
        everywhere = processes.all_gather_with_gradient(patches[0].contiguous())
        count = embedding.shape[1]  # a hard example may be made of a part of the batch
        places = torch.arange(count, device=embedding.device)
        own = processes.rank() * count + places
        labels = replace(labels, dictionary=everywhere, own=own)
        return self.loss(embedding, labels)

    def loss(self, embedding: Tensor, labels: SimCLRLabels) -> Tensor:
        losses, _ = self._over_the_grid(embedding, labels)
        return losses

    def correct(self, embedding: Tensor, labels: SimCLRLabels) -> Tensor:
        """The share of the predictions of which their own patch is the nearest, [V, B]."""
        _, hits = self._over_the_grid(embedding, labels)
        return hits

    def _over_the_grid(self, embedding: Tensor, labels: SimCLRLabels) -> tuple[Tensor, Tensor]:
        """Means over the predicted patches of loss and hits, [V, B] each."""
        _, predictions = self._parts(embedding)
        losses = []
        hits = []
        for below, ahead in zip(predictions.unbind(2), self.config.ahead, strict=True):
            loss, hit = patch_nce(below, labels.dictionary, ahead, labels.own, labels.shown)
            losses.append(loss.flatten(-2))
            hits.append(hit.flatten(-2))
        every_loss = torch.cat(losses, -1)
        every_hit = torch.cat(hits, -1).to(every_loss.dtype)
        return every_loss.mean(-1), every_hit.mean(-1)
