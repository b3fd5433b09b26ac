"""ClusterFit (Yan et al., CVPR 2020; F29): recognise the cluster of an image among a frozen network's features."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.core import Batch, Branch, EncoderConfig, Method, Passes, Setting
from hexa.methods.deepcluster import (
    ClusterLabels,
    check_clusters,
    clusterings,
    features_of,
    nearest,
    weights,
)
from hexa.methods.teacher import frozen, teacher_notes
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder
from hexa.ops.kmeans import UNASSIGNED


class ClusterFitConfig(EncoderConfig):
    """Linear classifiers of the clusters of a frozen teacher's features. The paper has one clustering of thousands."""

    name: Literal["clusterfit"] = "clusterfit"
    teacher: str | None = None
    """The network whose features are clustered: a run folder, a file of weights, timm:NAME or random:NAME, which sees
    the images at its own size; a resumed run reads it again. none: the backbone as it begins, with `start.weights`."""
    num_clusters: tuple[pydantic.PositiveInt, ...] = pydantic.Field(default=(1000,), min_length=1)
    """Clusters of each clustering, K, found once; each has a classifier of its own."""
    kmeans_iterations: int = pydantic.Field(default=20, gt=0)
    """Updates of the centroids."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        check_clusters(self.num_clusters, setting)


class ClusterFit(Method[ClusterLabels], config=ClusterFitConfig):
    """L = 1/H Σ_h mean over views and images of −log softmax_k(W_h f(x)), at the image's cluster in clustering h.

    The clusters are those of the teacher's features of all images as evaluation sees them, by spherical k-means before
    the first epoch, and never change; the paper's k-means is Euclidean. A hard example has the clusters of its image.
    """

    encoder: Encoder

    def __init__(
        self,
        config: ClusterFitConfig,
        backbone: nn.Module,
        setting: Setting,
        beside: nn.Module | None = None,
    ) -> None:
        """beside: a further head, whose outputs come before the scores in what the encoder returns."""
        super().__init__()
        self.config, self._begins = config, setting.begins_with
        self.teacher, width = frozen(config.teacher, backbone, setting)
        counts = config.num_clusters
        #: The mean over clusterings: all clusters equally likely.
        self.chance_loss = sum(math.log(count) for count in counts) / len(counts)
        head: nn.Module = nn.Linear(num_features(backbone), sum(counts))
        head = head if beside is None else Beside(beside, head)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        self.centroids = nn.Buffer(
            torch.zeros(sum(counts), width)
        )  # of all clusterings, one after another
        table = torch.full((len(counts), setting.data_size), UNASSIGNED, dtype=torch.int32)
        self.clusters = nn.Buffer(table)  # [H, N]

    def notes(self) -> list[str]:
        return teacher_notes(self.config.teacher, self._begins)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """The scores of the clusters of all clusterings, [V, B, Σ K]."""
        scores = self.encoder.project(crops, branch)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Cluster, once; returns the health of the clusterings. Raises ConfigError for too few images."""
        if epoch:
            return {}
        rows, index = features_of(self.teacher, data, self.centroids)
        counts, iterations = self.config.num_clusters, self.config.kmeans_iterations
        found, facts = clusterings(rows, index, counts, iterations, data, self.clusters)
        self.centroids.copy_(torch.cat([one.centroids for one in found]))
        return facts

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> ClusterLabels:
        if batch.known:
            own = self.clusters[:, batch.index].long()
        else:
            own = nearest(self.teacher(batch.crops[0]), self.centroids, self.config.num_clusters)
        return ClusterLabels(own, weights(own[0], batch.crops[0].dtype))

    def loss(self, embedding: Tensor, labels: ClusterLabels) -> Tensor:
        losses = [
            F.cross_entropy(
                scores.mT, own.expand(len(scores), -1), ignore_index=UNASSIGNED, reduction="none"
            )
            for scores, own in self._scores(embedding, labels)
        ]
        return torch.stack(losses).mean(0) * labels.weight

    def correct(self, embedding: Tensor, labels: ClusterLabels) -> Tensor:
        hits = [scores.argmax(-1) == own for scores, own in self._scores(embedding, labels)]
        return torch.stack(hits).to(labels.weight.dtype).mean(0) * labels.weight

    def _scores(self, embedding: Tensor, labels: ClusterLabels) -> Iterable[tuple[Tensor, Tensor]]:
        """For each clustering: scores [V, B, K] of its clusters, and those [B] that are to be found."""
        return zip(
            torch.split(embedding, list(self.config.num_clusters), -1), labels.clusters, strict=True
        )

    def directions(self, embedding: Tensor) -> None:
        return None


class Beside(nn.Module):
    """Two heads of the same features, their outputs one after the other."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.first(features), self.second(features)], -1)
