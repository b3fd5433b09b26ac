"""CMC (Tian et al., ECCV 2020; F29): recognise the lightness of an image by its colour, and its colour by its lightness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from hexa.config import field_error
from hexa.core import Batch, Branch, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, unit
from hexa.runtime.random import Stream
from hexa_paper.methods.instdisc import InstanceLabels, Memory, MemoryConfig


class CMCConfig(MemoryConfig):
    """CMC as published for ImageNet: L against ab, NCE with 16,384 negatives, τ 0.07."""

    name: Literal["cmc"] = "cmc"
    num_views: ClassVar = (1, 1, "CMC compares the lightness of a view with its colour")
    num_negatives: PositiveInt = 16384
    """nce only: random images per step, n, shared by the images of the step."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.streams != "lab":
            message = f"CMC compares the features of lightness with those of colour, got {setting.streams}; use lab"
            raise field_error("network.streams", message)


@dataclass(frozen=True, eq=False)
class CMCLabels(PseudoLabels):
    """Targets: `lightness` is compared with the memory of ab, `colour` with the memory of L."""

    lightness: InstanceLabels
    colour: InstanceLabels

    def __getitem__(self, index: Index) -> CMCLabels:
        return CMCLabels(self.lightness[index], self.colour[index])


class EachStream(nn.Module):
    """Features of two streams [B, 2·F] -> their projections, one behind the other, [B, 2·D]."""

    def __init__(self, lightness: nn.Module, colour: nn.Module) -> None:
        super().__init__()
        self.lightness = lightness
        self.colour = colour

    def forward(self, features: Tensor) -> Tensor:
        lightness, colour = features.chunk(2, -1)
        return torch.cat([self.lightness(lightness), self.colour(colour)], -1)


class CMC(Method[CMCLabels], config=CMCConfig):
    """L = −log P(i | z_L; colour) − log P(i | z_ab; lightness): each stream among the other's memories of all images.

    P is that of `instdisc.Memory`. An embedding is z_L and z_ab, two unit vectors, one behind the other [V, B, 2·D];
    the memories follow the clean ones (momentum μ). An attack moves RGB pixels, through the change of colour space and
    both streams. The published code draws negatives for each image; here all images of a step share them.
    """

    loss_per_image = True

    def __init__(
        self,
        config: CMCConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        width = num_features(backbone) // 2
        head = EachStream(nn.Linear(width, config.dim), nn.Linear(width, config.dim))
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        drawn = config.objective == "nce"
        self.chance_loss = None if drawn else 2 * math.log(setting.data_size)
        self.lightness = Memory(config, setting.data_size, setting.seed, drawn)
        # another seed, or both memories would start identical
        other_seed = Stream(setting.seed).child("colour").integer()
        self.colour = Memory(config, setting.data_size, other_seed, drawn)

    def notes(self) -> list[str]:
        return [f"lightness: {self.lightness.note()}", f"colour: {self.colour.note()}"]

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        projected = self.encoder.project(crops, branch)
        streams = projected.unflatten(-1, (2, self.config.dim))
        return unit(streams).flatten(-2)

    def directions(self, embedding: Tensor) -> Tensor:
        """Both as one unit vector."""
        return embedding / math.sqrt(2)

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> CMCLabels:
        lightness, colour = (None, None) if embedding is None else embedding.chunk(2, -1)
        of_lightness = self.colour.labels(batch, colour)
        of_colour = self.lightness.labels(batch, lightness)
        return CMCLabels(of_lightness, of_colour)

    def loss(self, embedding: Tensor, labels: CMCLabels) -> Tensor:
        lightness, colour = embedding.chunk(2, -1)
        by_lightness = self.colour.loss(lightness, labels.lightness)
        by_colour = self.lightness.loss(colour, labels.colour)
        return by_lightness + by_colour

    def correct(self, embedding: Tensor, labels: CMCLabels) -> Tensor:
        """True if each stream is nearest to the other's memory of the same image."""
        lightness, colour = embedding.chunk(2, -1)
        first = labels.lightness.nearest(lightness)
        second = labels.colour.nearest(colour)
        return first & second

    def commit(
        self,
        batch: Batch,
        embedding: Tensor,
        labels: CMCLabels,
    ) -> None:
        lightness, colour = embedding.chunk(2, -1)
        self.lightness.update(batch, lightness)
        self.colour.update(batch, colour)
