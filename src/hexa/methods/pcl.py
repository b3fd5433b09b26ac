"""PCL-v2 (Li et al., ICLR 2021; F29): MoCo-v2 that also predicts the clusters of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from hexa.config import field_error
from hexa.core import Batch, Branch, Method, MethodConfig, Passes, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.methods.deepcluster import cluster, weights
from hexa.methods.moco import MoCo, MoCoConfig, MoCoLabels, completed_by
from hexa.nn.backbones import tried
from hexa.nn.encoder import unit
from hexa.ops.draws import drawn
from hexa.ops.kmeans import UNASSIGNED, memory_note
from hexa.ops.partitions import health
from hexa.ops.proto_nce import compare, concentrations, proto_nce
from hexa.runtime import processes
from hexa.runtime.random import Stream

#: Fields in which PCL's MoCo differs from MoCo-v2.
_CONTRAST = {"queue_size": 16384}


class PCLConfig(MethodConfig):
    """PCL-v2 as published for ImageNet: MoCo-v2 with a queue of 16,384, and three clusterings after
    20 epochs."""

    name: Literal["pcl-v2"] = "pcl-v2"
    num_views: ClassVar = (2, 2, "PCL compares two views")
    contrast: Annotated[MoCoConfig, completed_by(_CONTRAST)] = MoCoConfig.model_validate(_CONTRAST)
    """Fields of MoCo. Its temperature τ is also the mean of the clusters' temperatures."""
    num_clusters: tuple[pydantic.PositiveInt, ...] = pydantic.Field(
        default=(25000, 50000, 100000), min_length=1
    )
    """Number of clusters K of each clustering: about 1/50, 1/25 and 1/13 of the number of
    images."""
    num_negatives: PositiveInt = 16384
    """Number r of random prototypes that a query is compared with, in addition to those of the
    batch; all others if there are fewer. If images of a batch share a prototype, more are drawn:
    the total is always r + B."""
    warmup_epochs: NonNegativeInt = 20
    """Number of initial epochs with InfoNCE alone, without clustering."""
    kmeans_iterations: PositiveInt = 20
    """Number of centroid updates at the start of every later epoch."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        self.contrast.check_within("contrast", setting)
        most = max(self.num_clusters)
        if most > setting.data_size:
            # suggest fewer clusters in the same ratios, at most 1/13 of the images
            largest = max(1, setting.data_size // 13)
            fewer = ",".join(str(max(2, count * largest // most)) for count in self.num_clusters)
            raise field_error(
                "method.num_clusters",
                f"{most} clusters exceed the {setting.data_size} images; use [{fewer}]",
            )


@dataclass(frozen=True, eq=False)
class PCLLabels(PseudoLabels):
    """The key of every anchor's image, and for each clustering the index of its prototype among the
    compared ones.

    contrast: pseudo-labels of MoCo.
    compared: H tensors [M_h], indices of the prototypes that all images of the batch are compared
    with; empty in the warm-up.
    targets: int64 [H, B], positions in `compared`, −100 for an image without a cluster.
    weight: [B], 0 for unassigned images; otherwise scaled so that the batch mean equals the mean
    over assigned images.
    """

    contrast: MoCoLabels
    compared: tuple[Tensor, ...]
    targets: Tensor
    weight: Tensor

    def __getitem__(self, index: Index) -> PCLLabels:
        return PCLLabels(
            self.contrast[index], self.compared, self.targets[:, index], self.weight[index]
        )

    def mixed(self, permutation: Tensor) -> tuple[PCLLabels, PCLLabels]:
        first, second = self.contrast.mixed(permutation)
        return replace(self, contrast=first), replace(self[permutation], contrast=second)


class PCL(Method[PCLLabels], config=PCLConfig):
    """L = InfoNCE + 1/H Σ_h ProtoNCE_h, ProtoNCE = −log softmax_j(q·c_j / φ_j) at the image's
    cluster.

    At the start of every epoch after the warm-up, the momentum encoder embeds all images with the
    evaluation transform and running statistics. H runs of k-means on these features give prototypes
    c, their concentrations φ (`ops.proto_nce`) and the cluster of each image. A hard example is a
    query: keys, prototypes and clusters come from the clean image, and mixing mixes both kinds of
    pseudo-label (F16, F29).

    A query is compared with the prototypes of all images of the step and with r random others, the
    same for all terms of the step. Two details differ from the published code. First, the published
    code lists a prototype once per image of the process, so an image's own prototype can be among
    its negatives; here each prototype appears once, and the step includes all processes, so the
    number of processes does not matter. Second, the published code takes the best of five Euclidean
    k-means on at most 1000 images per cluster and normalises the centroids afterwards; here one
    spherical k-means uses all images.

    The loss of a network with constant output changes at the end of the warm-up, so `chance_loss`
    is None.
    """

    is_static = True
    loss_per_image = True

    def __init__(self, config: PCLConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self.contrast = MoCo(config.contrast, backbone, setting)
        self.num_compared = config.num_negatives + setting.batch_size
        self.first_step = config.warmup_epochs * setting.steps_per_epoch
        self.total_steps = setting.epochs * setting.steps_per_epoch
        every = sum(config.num_clusters)  # all clusterings, one after another
        self.centroids = nn.Buffer(torch.zeros(every, config.contrast.dim))  # [Σ K, D]
        self.concentrations = nn.Buffer(torch.full((every,), config.contrast.temperature))  # [Σ K]
        size = (len(config.num_clusters), setting.data_size)
        self.clusters = nn.Buffer(torch.full(size, UNASSIGNED, dtype=torch.int32))  # [H, N]

    @property
    def backbone(self) -> nn.Module:
        return self.contrast.backbone

    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.contrast.anchors(batch)

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        return self.contrast.embed(crops, branch)

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> PCLLabels:
        contrast = self.contrast.pseudo_labels(batch, embedding)
        if batch.known:
            own = self.clusters[:, batch.index].long()
        else:
            keys = contrast.keys[0]
            parts = torch.split(self.centroids.to(keys.dtype), list(self.config.num_clusters))
            own = torch.stack([(keys @ part.T).argmax(1) for part in parts])
        weight = weights(own[0], batch.crops[0].dtype)
        # comparing steps needs no synchronisation with the device
        if self.phase(batch.step):
            return PCLLabels(contrast, (), own[:0], weight)
        everyone = processes.all_gather(own.T.contiguous()).T
        compared = []
        targets = []
        for number, count in enumerate(self.config.num_clusters):
            stream = batch.stream.child("negative prototypes", number)
            order = drawn(partial(_permutation, count, own.device), stream, own.device)
            most = self.num_compared
            chosen, places = compare(own[number], everyone[number], count, most, order)
            compared.append(chosen)
            targets.append(places)
        return PCLLabels(contrast, tuple(compared), torch.stack(targets), weight)

    def phase(self, step: int) -> bool:
        """Return whether the step is in the warm-up."""
        return step < self.first_step

    def loss(self, embedding: Tensor, labels: PCLLabels) -> Tensor:
        instance = self.contrast.loss(embedding, labels.contrast)
        if not labels.compared:
            return instance
        views = len(embedding)
        sizes = list(self.config.num_clusters)
        centroids = torch.split(self.centroids, sizes)
        temperatures = torch.split(self.concentrations, sizes)
        clusterings = zip(centroids, temperatures, labels.compared, labels.targets, strict=True)
        parts = [
            proto_nce(embedding, rows[chosen], temperature[chosen], targets.expand(views, -1))
            for rows, temperature, chosen, targets in clusterings
        ]
        # as in MoCo, the two terms of a symmetric loss are added
        return instance + views * torch.stack(parts).mean(0) * labels.weight

    def correct(self, embedding: Tensor, labels: PCLLabels) -> Tensor:
        """Return whether the key is the nearest, bool [V, B]; without prototypes, so that the
        warm-up and later epochs compare."""
        return self.contrast.correct(embedding, labels.contrast)

    def commit(self, batch: Batch, embedding: Tensor, labels: PCLLabels) -> None:
        self.contrast.commit(batch, embedding, labels.contrast)

    def notes(self) -> list[str]:
        rows = -(-self.clusters.shape[1] // processes.world_size())
        held = f"between epochs, features of {rows:,} images"
        notes = [memory_note(held, rows, self.config.contrast.dim)]
        if self.first_step >= self.total_steps:
            notes.append(
                "the run ends before method.warmup_epochs, so PCL never clusters: it is MoCo"
            )
        return notes

    # -- between epochs -----------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Cluster all images, after the warm-up. Return the metrics of DeepCluster-v2, as means
        over the clusterings."""
        if epoch < self.config.warmup_epochs:
            return {}
        # embed this process's share of all images with the momentum encoder
        key = self.contrast.key
        device = self.clusters.device
        rows = [self.centroids[:0]]
        index = [torch.empty(0, dtype=torch.long, device=device)]
        with tried(key):
            for batch in data.images():
                rows.append(unit(key(batch.crops[0])))
                index.append(batch.index.to(device))
        features = torch.cat(rows)
        # cluster them
        counts = self.config.num_clusters
        iterations = self.config.kmeans_iterations
        found = [
            cluster(features, count, iterations, data, number, "num_clusters")
            for number, count in enumerate(counts)
        ]
        # gather the clusters of all images; each image is assigned by exactly one process
        before = self.clusters.clone()
        table = torch.full_like(before, UNASSIGNED)
        table[:, torch.cat(index)] = torch.stack([one.assignments for one in found]).int()
        self.clusters.copy_(processes.all_reduce_max(table))
        # the centroids become prototypes
        mean = self.config.contrast.temperature
        temperatures = [
            concentrations(features, one.centroids, one.assignments, mean) for one in found
        ]
        self.centroids.copy_(torch.cat([one.centroids for one in found]))
        self.concentrations.copy_(torch.cat(temperatures))
        return health(self.clusters, before, counts, data.labels)


def _permutation(count: int, device: torch.device, stream: Stream) -> Tensor:
    """Draw a permutation on the device."""
    return torch.randperm(count, generator=stream.generator(device), device=device)
