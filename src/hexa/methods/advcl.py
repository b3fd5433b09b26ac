"""AdvCL (Fan et al., NeurIPS 2021; F29): recognise the other views of an image, and its cluster in a good network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn

from hexa.core import Batch, Branch, Method, MethodConfig, Passes, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.core.method import within
from hexa.methods.clusterfit import ClusterFit, ClusterFitConfig
from hexa.methods.deepcluster import ClusterLabels
from hexa.methods.moco import completed_by
from hexa.methods.simclr import SimCLRLabels, among_themselves, in_dictionary
from hexa.nn.backbones import num_features
from hexa.nn.encoder import normalized_head, unit
from hexa.ops.contrastive import finds_other_view, nt_xent

#: Defaults of AdvCL's ClusterFit.
_CLUSTERS = {"num_clusters": (2, 10, 50, 100, 500)}


class AdvCLConfig(MethodConfig):
    """AdvCL as published for CIFAR-10: τ 0.5, five clusterings."""

    name: Literal["advcl"] = "advcl"
    num_views: ClassVar = (2, None, "AdvCL compares views of an image")
    clusters: Annotated[ClusterFitConfig, completed_by(_CLUSTERS)] = (
        ClusterFitConfig.model_validate(_CLUSTERS)
    )
    """The part that is ClusterFit: the teacher and its clusters."""
    cluster_weight: float = pydantic.Field(default=0.028, ge=0)
    """λ, the weight of the clusters' term: the published 0.2 · 0.07 / τ, since that code multiplies the contrast by
    τ / 0.07."""
    dim: int = pydantic.Field(default=128, gt=0)
    """Width of the embedding, D."""
    temperature: float = pydantic.Field(default=0.5, gt=0)
    """τ of the contrast."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        self.clusters.check_within("clusters", setting)


@dataclass(frozen=True, eq=False)
class AdvCLLabels(PseudoLabels):
    """Pseudo-labels of both terms: the images of the batch, and their clusters."""

    contrast: SimCLRLabels
    clusters: ClusterLabels

    def __getitem__(self, index: Index) -> AdvCLLabels:
        return AdvCLLabels(self.contrast[index], self.clusters[index])

    def mixed(self, permutation: Tensor) -> tuple[AdvCLLabels, AdvCLLabels]:
        own, other = self.contrast.mixed(permutation)
        return AdvCLLabels(own, self.clusters), AdvCLLabels(other, self.clusters[permutation])


class AdvCL(Method[AdvCLLabels], config=AdvCLConfig):
    """L = NT-Xent + λ·(the loss of ClusterFit), each with a head of its own on one backbone.

    One of the views is to be of high frequencies alone (`views.high_frequencies`). As published the clusters' term is
    of attacked images alone, which have a set of batch-norms for each term, and they join the clean views in one
    NT-Xent; here both terms are of clean and of hard views, and a hard view is a query against the clean batch.
    """

    labels_from_embedding = True

    def __init__(self, config: AdvCLConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config, width = config, num_features(backbone)
        with within("clusters"):
            self.clusters = ClusterFit(
                config.clusters, backbone, setting, normalized_head(width, width, config.dim)
            )

    @property
    def backbone(self) -> nn.Module:
        return self.clusters.backbone

    def notes(self) -> list[str]:
        return [
            note.replace("--method.teacher", "--method.clusters.teacher")
            for note in self.clusters.notes()
        ]

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Cluster, once."""
        with within("clusters"):
            return self.clusters.start_epoch(epoch, data)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Unit vectors to compare, then the scores of the clusters, [V, B, D + Σ K]."""
        rows, scores = self._parts(self.clusters.embed(crops, branch))
        return torch.cat([unit(rows), scores], -1)

    def _parts(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        return embedding[..., : self.config.dim], embedding[..., self.config.dim :]

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> AdvCLLabels:
        assert embedding is not None, "the dictionary is made of the clean embedding"
        return AdvCLLabels(
            in_dictionary(batch, self._parts(embedding)[0]),
            self.clusters.pseudo_labels(batch, None),
        )

    def clean_loss(self, embedding: Tensor, labels: AdvCLLabels) -> Tensor:
        """[V, B], with gradient through all views."""
        rows, scores = self._parts(embedding)
        contrast = among_themselves(rows, self.config.temperature)
        return contrast + self.config.cluster_weight * self.clusters.loss(scores, labels.clusters)

    def loss(self, embedding: Tensor, labels: AdvCLLabels) -> Tensor:
        (rows, scores), find = self._parts(embedding), labels.contrast
        contrast = nt_xent(rows, find.dictionary, find.own, find.shown, self.config.temperature)
        return contrast + self.config.cluster_weight * self.clusters.loss(scores, labels.clusters)

    def correct(self, embedding: Tensor, labels: AdvCLLabels) -> Tensor:
        """True where the most similar row is another view of the image, bool [V, B]; clusters are left out."""
        rows, find = self._parts(embedding)[0], labels.contrast
        return finds_other_view(rows, find.dictionary, find.own, find.shown)

    def directions(self, embedding: Tensor) -> Tensor:
        return self._parts(embedding)[0]
