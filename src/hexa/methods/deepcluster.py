"""DeepCluster-v2 (Caron et al., 2020; F8): predict the cluster of an image from each of its
crops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import field_error
from hexa.core import MAIN, Batch, EncoderConfig, Method, Passes, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, normalized_head
from hexa.nn.memory_bank import MemoryBank
from hexa.ops.kmeans import UNASSIGNED, Clusters, memory_note, spherical_kmeans
from hexa.ops.partitions import health
from hexa.runtime import processes


class DeepClusterConfig(EncoderConfig):
    """DeepCluster-v2 as published: three heads of 3000 prototypes; two large crops are clustered
    (F8)."""

    name: Literal["deepcluster-v2"] = "deepcluster-v2"
    dim: PositiveInt = 128
    """Width of the embedding, D."""
    hidden: PositiveInt = 2048
    """Width of the head's hidden layer."""
    num_prototypes: tuple[pydantic.PositiveInt, ...] = pydantic.Field(
        default=(3000, 3000, 3000), min_length=1
    )
    """Number of clusters K of each head; on small data ten times the expected number of classes
    (F8)."""
    temperature: PositiveFloat = 0.1
    """τ."""
    crops_for_assign: tuple[pydantic.NonNegativeInt, ...] = pydantic.Field(
        default=(0, 1), min_length=1
    )
    """Crops whose embeddings are stored and clustered. With n crops, head h clusters crop number h
    mod n of this list."""
    kmeans_iterations: PositiveInt = 10
    """Updates of the centroids at the start of every epoch."""
    freeze_prototypes_steps: NonNegativeInt | None = None
    """Freeze the prototypes for this many steps; none freezes them for the whole run (D40)."""

    def views_needed(self) -> tuple[int, int | None, str]:
        return max(self.crops_for_assign) + 1, None, "method.crops_for_assign needs a later crop"

    def check(self, setting: Setting) -> None:
        super().check(setting)
        most = max(self.num_prototypes)
        seen = setting.steps_per_epoch * setting.batch_size
        if most > seen:
            fewer = ",".join(str(min(count, max(1, seen // 10))) for count in self.num_prototypes)
            raise field_error(
                "method.num_prototypes",
                f"{most} clusters exceed the {seen} images of an epoch; use [{fewer}]",
            )


@dataclass(frozen=True, eq=False)
class ClusterLabels(PseudoLabels):
    """The clusters of every image, one per head, for all of its crops.

    clusters: int64 [H, B], UNASSIGNED for an image without a cluster.
    weight: [B], see `weights`.
    frozen: no gradient reaches the prototypes.
    """

    clusters: Tensor
    weight: Tensor
    frozen: bool = True

    def __getitem__(self, index: Index) -> ClusterLabels:
        return replace(self, clusters=self.clusters[:, index], weight=self.weight[index])


def weights(clusters: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 for images without a cluster, [B]; otherwise the scale at which the batch mean
    equals the mean over assigned images.

    Assigned images are counted over all processes, so the result does not depend on how images are
    distributed.
    """
    assigned = (clusters != UNASSIGNED).to(dtype)
    total = processes.all_reduce_sum(assigned.sum()).clamp_min(1)
    return assigned * (len(assigned) * processes.world_size() / total)


def cluster(
    rows: Tensor,
    count: int,
    iterations: int,
    data: Passes,
    number: int,
    field: str,
    valid: Tensor | None = None,
) -> Clusters:
    """Run the k-means with this number at the start of an epoch.

    Raises ConfigError for `field` if there are fewer rows than clusters.
    """
    generator = data.stream.child("kmeans", number).generator()
    try:
        return spherical_kmeans(rows, count, generator, iterations=iterations, valid=valid)
    except ValueError as error:  # images that could not be read
        raise field_error(f"method.{field}", str(error)) from None


class DeepCluster(Method[ClusterLabels], config=DeepClusterConfig):
    """L = 1/H Σ_h mean over crops and images of −log softmax_k(z·c_hk / τ), at the image's cluster
    (F8).

    At the start of every epoch, spherical k-means clusters the embeddings that the previous epoch
    stored in a bank; centroids become prototypes, clusters become pseudo-labels (D38). Before the
    first epoch one pass fills the bank. The bank holds clean embeddings only (D34).
    """

    is_static = True
    loss_per_image = True
    sharded = ("bank.embeddings", "bank.seen")

    def __init__(
        self,
        config: DeepClusterConfig,
        backbone: nn.Module,
        setting: Setting,
    ) -> None:
        super().__init__()
        self.config = config
        counts = config.num_prototypes
        # all clusters equally likely; mean over heads
        self.chance_loss = sum(map(math.log, counts)) / len(counts)
        head = normalized_head(num_features(backbone), config.hidden, config.dim)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        heads = (nn.Linear(config.dim, count, bias=False) for count in counts)
        self.prototypes = nn.ModuleList(heads)
        self.prototypes.requires_grad_(config.freeze_prototypes_steps is not None)
        self.bank = MemoryBank(setting.data_size, len(config.crops_for_assign), config.dim)
        size = (len(counts), setting.data_size)
        self.clusters = nn.Buffer(torch.full(size, UNASSIGNED, dtype=torch.int32))  # [H, N]

    def pseudo_labels(
        self,
        batch: Batch,
        embedding: Tensor | None,
    ) -> ClusterLabels:
        clusters = self.clusters[:, batch.index].long() if batch.known else self._nearest(embedding)
        dtype = batch.crops[0].dtype
        return ClusterLabels(clusters, weights(clusters[0], dtype), self.phase(batch.step))

    def phase(self, step: int) -> bool:
        """Return whether the prototypes are frozen."""
        steps = self.config.freeze_prototypes_steps
        return steps is None or step < steps

    def _nearest(self, embedding: Tensor | None) -> Tensor:
        """Return the nearest clusters of images that are not in the bank, [H, B]."""
        assert embedding is not None, "images of another data set need an embedding"
        crops = itertools.cycle(self.config.crops_for_assign)
        found = []
        for crop, prototypes in zip(crops, self.prototypes.parameters(), strict=False):
            scores = embedding[crop] @ prototypes.T.to(embedding.dtype)
            found.append(scores.argmax(1))
        return torch.stack(found)

    def loss(
        self,
        embedding: Tensor,
        labels: ClusterLabels,
    ) -> Tensor:
        losses = []
        for scores, clusters in self._scores(embedding, labels):
            scaled = scores / self.config.temperature
            losses.append(
                F.cross_entropy(scaled, clusters, ignore_index=UNASSIGNED, reduction="none")
            )
        return torch.stack(losses).mean(0).view(embedding.shape[:2]) * labels.weight

    def correct(
        self,
        embedding: Tensor,
        labels: ClusterLabels,
    ) -> Tensor:
        found = self._scores(embedding, labels)
        hits = torch.stack([scores.argmax(1) == clusters for scores, clusters in found])
        share = hits.to(labels.weight.dtype).mean(0)
        return share.view(embedding.shape[:2]) * labels.weight

    def _scores(
        self,
        embedding: Tensor,
        labels: ClusterLabels,
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield for each head the cosines [V·B, K] to its prototypes, and the target clusters
        [V·B]."""
        rows = embedding.flatten(0, 1)
        heads = zip(self.prototypes.parameters(), labels.clusters, strict=True)
        with torch.autocast(rows.device.type, enabled=False):
            for prototypes, clusters in heads:
                fixed = prototypes.detach() if labels.frozen else prototypes
                yield rows @ fixed.T, clusters.repeat(len(embedding))

    def commit(
        self,
        batch: Batch,
        embedding: Tensor,
        labels: ClusterLabels,
    ) -> None:
        count = embedding.shape[1]
        chosen = torch.stack([embedding[crop] for crop in self.config.crops_for_assign])
        self.bank.write(batch.index[:count], chosen)
        # if the clean term used a part of the batch, the other images keep their last embedding
        if count < len(batch):
            self.bank.keep(batch.index[count:])

    def notes(self) -> list[str]:
        crops = len(self.config.crops_for_assign)
        held = f"memory bank of {self.bank.rows:,} images × {crops} crops"
        return [memory_note(held, self.bank.rows * crops, self.config.dim)]

    # -- between epochs -----------------------------------------------------------------------------------------------

    def start_epoch(
        self,
        epoch: int,
        data: Passes,
    ) -> dict[str, float]:
        """Cluster the embeddings that the previous epoch stored; return statistics of the
        clusterings."""
        crops = self.config.crops_for_assign
        if epoch == 0:  # each crop on its own, in training mode, as published (F8)
            for batch in data.views():
                rows = [self.embed((batch.crops[crop],), MAIN)[0] for crop in crops]
                self.bank.write(batch.index, torch.stack(rows))
        before = self.clusters.clone()
        tables = []
        for head, prototypes in enumerate(self.prototypes.parameters()):
            banked, seen = self.bank.crop(head % len(crops))
            iterations = self.config.kmeans_iterations
            count = len(prototypes)
            found = cluster(banked, count, iterations, data, head, "num_prototypes", seen)
            prototypes.copy_(found.centroids)
            tables.append(self.bank.join(found.assignments.int()))
        self.clusters.copy_(torch.stack(tables))
        self.bank.forget()
        return health(self.clusters, before, self.config.num_prototypes, data.labels)

    def checkpoint(self) -> dict[str, Any]:
        return self.state_dict() | {f"bank.{name}": rows for name, rows in self.bank.part().items()}

    def restore(self, state: dict[str, Any]) -> None:
        self.bank.take(state["bank.embeddings"], state["bank.seen"])
        own = {f"bank.{name}": value for name, value in self.bank.state_dict().items()}
        self.load_state_dict({**state, **own})
