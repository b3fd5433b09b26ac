"""DeepCluster-v2 (Caron et al., 2020; F8): recognise the cluster of an image in each of its crops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import ConfigError
from hexa.core import MAIN, Batch, EncoderConfig, Method, Passes, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, normalized_head, unit
from hexa.nn.memory_bank import MemoryBank
from hexa.ops.kmeans import UNASSIGNED, Clusters, memory_note, spherical_kmeans
from hexa.ops.partitions import health
from hexa.runtime import processes


class DeepClusterConfig(EncoderConfig):
    """DeepCluster-v2 as published: three heads of 3000 prototypes, two large crops clustered (F8)."""

    name: Literal["deepcluster-v2"] = "deepcluster-v2"
    dim: PositiveInt = 128
    """Width of the embedding, D."""
    hidden: PositiveInt = 2048
    """Width of the head's hidden layer."""
    num_prototypes: tuple[pydantic.PositiveInt, ...] = pydantic.Field(
        default=(3000, 3000, 3000), min_length=1
    )
    """Clusters of each head, K; ten times the expected classes serve small data (F8)."""
    temperature: PositiveFloat = 0.1
    """τ."""
    crops_for_assign: tuple[pydantic.NonNegativeInt, ...] = pydantic.Field(
        default=(0, 1), min_length=1
    )
    """The crops whose embeddings are kept and clustered; head h clusters the (h mod their number)-th of them."""
    kmeans_iterations: PositiveInt = 10
    """Updates of the centroids at the start of every epoch."""
    freeze_prototypes_steps: NonNegativeInt | None = None
    """Steps for which prototypes stay what k-means made them; none is always (D40)."""

    def views_needed(self) -> tuple[int, int | None, str]:
        return max(self.crops_for_assign) + 1, None, "method.crops_for_assign names another crop"

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if max(self.num_prototypes) > (seen := setting.steps_per_epoch * setting.batch_size):
            fewer = ",".join(str(min(count, max(1, seen // 10))) for count in self.num_prototypes)
            message = f"{max(self.num_prototypes)} are more than the {seen} images an epoch sees; use [{fewer}]"
            raise ConfigError([("method.num_prototypes", message)])


@dataclass(frozen=True, eq=False)
class ClusterLabels(PseudoLabels):
    """The clusters of every image, one a head, for all of its crops.

    clusters: int64 [H, B], UNASSIGNED for an image without one. weight: [B], 0 for
    unassigned images; otherwise scaled so that the batch mean equals the mean over assigned images.
    """

    clusters: Tensor
    weight: Tensor
    frozen: bool = True

    def __getitem__(self, index: Index) -> ClusterLabels:
        return replace(self, clusters=self.clusters[:, index], weight=self.weight[index])


def weights(clusters: Tensor, dtype: torch.dtype) -> Tensor:
    """0 for images without a cluster [B]; for others scaled so that the batch mean equals the mean over them.

    Over those of all processes, so that it does not depend on who got which.
    """
    weight = (clusters != UNASSIGNED).to(dtype)
    return weight * (
        len(weight) * processes.world_size() / processes.all_reduce_sum(weight.sum()).clamp_min(1)
    )


def cluster(
    rows: Tensor,
    count: int,
    iterations: int,
    data: Passes,
    number: int,
    field: str,
    valid: Tensor | None = None,
) -> Clusters:
    """K-means number `number` of an epoch's start. Raises ConfigError about `field` for fewer rows than clusters."""
    generator = data.stream.child("kmeans", number).generator()
    try:
        return spherical_kmeans(rows, count, generator, iterations=iterations, valid=valid)
    except ValueError as error:  # images that could not be read
        raise ConfigError([(f"method.{field}", str(error))]) from None


def check_clusters(counts: Sequence[int], setting: Setting) -> None:
    """Raise ConfigError for more clusters than images, with numbers in the same ratios that do."""
    if (most := max(counts)) > setting.data_size:
        largest = max(1, setting.data_size // 13)
        fewer = ",".join(str(max(2, count * largest // most)) for count in counts)
        message = f"{most} are more than the {setting.data_size} images; use [{fewer}]"
        raise ConfigError([("method.num_clusters", message)])


def clusterings(
    rows: Tensor,
    index: Tensor,
    counts: Sequence[int],
    iterations: int,
    data: Passes,
    clusters: Tensor,
) -> tuple[list[Clusters], dict[str, float]]:
    """K-means of this process's rows [n, D] for each of `counts`; returns them, and their health on the main process.

    clusters: int32 [H, N], which becomes that of every image of all processes. index: int64 [n], the images of rows.
    """
    found = [
        cluster(rows, count, iterations, data, number, "num_clusters")
        for number, count in enumerate(counts)
    ]
    before = clusters.clone()
    table = torch.full_like(clusters, UNASSIGNED)
    table[:, index] = torch.stack([one.assignments for one in found]).int()
    # shares do not overlap, so whoever has a cluster for an image is right
    clusters.copy_(processes.all_reduce_max(table))
    return found, health(clusters, before, counts, data.labels) if processes.is_main() else {}


def features_of(
    network: Callable[[Tensor], Tensor], data: Passes, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Unit features [n, D] of this process's share of all images, and their positions [n]. like: [·, D]."""
    rows = [like[:0]]
    index = [torch.empty(0, dtype=torch.long, device=like.device)]
    for batch in data.images():
        rows.append(unit(network(batch.crops[0])))
        index.append(batch.index.to(like.device))
    return torch.cat(rows), torch.cat(index)


def nearest(rows: Tensor, centroids: Tensor, counts: Sequence[int]) -> Tensor:
    """The nearest cluster to each row [B, D] in each clustering, [H, B]. centroids: [Σ K, D], one after another."""
    parts = torch.split(centroids.to(rows.dtype), list(counts))
    return torch.stack([(rows @ part.T).argmax(1) for part in parts])


class DeepCluster(Method[ClusterLabels], config=DeepClusterConfig):
    """L = 1/H Σ_h mean over crops and images of −log softmax_k(z·c_hk / τ), at the image's cluster (F8).

    At the start of every epoch the embeddings that the epoch before left in a bank are clustered by spherical k-means;
    centroids become prototypes, clusters become pseudo-labels (D38). Before the first epoch one pass fills the bank.
    Only clean embeddings are ever banked (D34).
    """

    def __init__(self, config: DeepClusterConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        #: The mean over heads: all clusters equally likely.
        self.chance_loss = sum(math.log(count) for count in config.num_prototypes) / len(
            config.num_prototypes
        )
        head = normalized_head(num_features(backbone), config.hidden, config.dim)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        self.prototypes = nn.ModuleList(
            nn.Linear(config.dim, count, bias=False) for count in config.num_prototypes
        )
        self.prototypes.requires_grad_(config.freeze_prototypes_steps is not None)
        self.bank = MemoryBank(setting.data_size, len(config.crops_for_assign), config.dim)
        table = torch.full(
            (len(config.num_prototypes), setting.data_size), UNASSIGNED, dtype=torch.int32
        )
        self.clusters = nn.Buffer(table)  # [H, N]

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> ClusterLabels:
        clusters = self.clusters[:, batch.index].long() if batch.known else self._nearest(embedding)
        steps = self.config.freeze_prototypes_steps
        return ClusterLabels(
            clusters,
            weights(clusters[0], batch.crops[0].dtype),
            steps is None or batch.step < steps,
        )

    def _nearest(self, embedding: Tensor | None) -> Tensor:
        """Nearest clusters of images that are not in the bank, [H, B]."""
        assert embedding is not None, "images of another data set need an embedding"
        heads = zip(
            itertools.cycle(self.config.crops_for_assign),
            self.prototypes.parameters(),
            strict=False,
        )
        return torch.stack(
            [(embedding[crop] @ p.T.to(embedding.dtype)).argmax(1) for crop, p in heads]
        )

    def loss(self, embedding: Tensor, labels: ClusterLabels) -> Tensor:
        losses = [
            F.cross_entropy(
                scores / self.config.temperature,
                clusters,
                ignore_index=UNASSIGNED,
                reduction="none",
            )
            for scores, clusters in self._scores(embedding, labels)
        ]
        return torch.stack(losses).mean(0).view(embedding.shape[:2]) * labels.weight

    def correct(self, embedding: Tensor, labels: ClusterLabels) -> Tensor:
        hits = [
            scores.argmax(1) == clusters for scores, clusters in self._scores(embedding, labels)
        ]
        return (
            torch.stack(hits).to(labels.weight.dtype).mean(0).view(embedding.shape[:2])
            * labels.weight
        )

    def _scores(self, embedding: Tensor, labels: ClusterLabels) -> Iterable[tuple[Tensor, Tensor]]:
        """For each head: cosines [V·B, K] to its prototypes, and the clusters [V·B] it should find."""
        rows = embedding.flatten(0, 1)
        with torch.autocast(rows.device.type, enabled=False):
            for prototypes, clusters in zip(
                self.prototypes.parameters(), labels.clusters, strict=True
            ):
                yield (
                    rows @ (prototypes.detach() if labels.frozen else prototypes).T,
                    clusters.repeat(len(embedding)),
                )

    def commit(self, batch: Batch, embedding: Tensor, labels: ClusterLabels) -> None:
        chosen = torch.stack([embedding[crop] for crop in self.config.crops_for_assign])
        count = embedding.shape[1]
        self.bank.write(batch.index[:count], chosen)
        if count < len(
            batch
        ):  # the clean term had a share of the batch; the others keep their last embedding
            self.bank.keep(batch.index[count:])

    def notes(self) -> list[str]:
        rows = self.bank.rows
        crops = len(self.config.crops_for_assign)
        dim = self.config.dim
        held = f"memory bank of {rows:,} images × {crops} crops"
        return [
            memory_note(
                held, rows * crops, rows, dim, self.config.num_prototypes, self.clusters.device
            )
        ]

    # -- between epochs -----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Cluster what the epoch before left in the bank; returns the health of the clusterings."""
        if epoch == 0:  # each crop on its own, in training mode, as published (F8)
            for batch in data.views():
                rows = [
                    self.embed((batch.crops[crop],), MAIN)[0]
                    for crop in self.config.crops_for_assign
                ]
                self.bank.write(batch.index, torch.stack(rows))
        before = self.clusters.clone()
        tables = []
        for head, prototypes in enumerate(self.prototypes.parameters()):
            banked, seen = self.bank.crop(head % len(self.config.crops_for_assign))
            iterations = self.config.kmeans_iterations
            count = len(prototypes)
            found = cluster(banked, count, iterations, data, head, "num_prototypes", seen)
            prototypes.copy_(found.centroids)
            tables.append(self.bank.join(found.assignments.int()))
        self.clusters.copy_(torch.stack(tables))
        self.bank.forget()
        return (
            health(self.clusters, before, self.config.num_prototypes, data.labels)
            if processes.is_main()
            else {}
        )

    def checkpoint(self) -> dict[str, Any]:
        """With the whole bank, of which each process has a part."""
        state = self.state_dict()
        del state["bank.embeddings"], state["bank.seen"]
        state |= {f"bank.{name}": value for name, value in self.bank.whole().items()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self.bank.take(state["bank.embeddings"], state["bank.seen"])
        self.load_state_dict(
            {**state, **{f"bank.{name}": value for name, value in self.bank.state_dict().items()}}
        )
