"""The clusters of a trained backbone's features, shown by their most typical images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hexa.config import UserError
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.sources.source import Subset
from hexa.evaluation.features import extract
from hexa.evaluation.split import draw_images
from hexa.ops.kmeans import spherical_kmeans
from hexa.reporting.gallery import class_of, tiles_of
from hexa.reporting.pictures import MID_GREY, Gallery
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Clusters of a figure, and images that show each of them.
_CLUSTERS = 8
_NEAREST = 9
LIMIT = 5000
"""Images that are embedded, drawn at random from larger sources."""


@dataclass(frozen=True)
class EmbeddedImages:
    """Unit features [N, D] of some images of a source, with what is needed to show them."""

    features: NDArray[np.float32]
    source: Source
    size: int

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        source: Source,
        *,
        limit: int = LIMIT,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> EmbeddedImages:
        """At most `limit` images, drawn by the seed, through the frozen backbone. progress: as for `extract`."""
        some = Subset(source, draw_images(len(source), limit, Stream(seed).child("gallery")))
        features, positions = extract(
            backbone, some, device=precisions.pick_device("auto"), progress=progress
        )
        unit = functional.normalize(features, dim=1).numpy()
        return cls(unit, Subset(some, positions.numpy()), backbone.image_size)


def grouped(embedded: EmbeddedImages, num_clusters: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Clusters of spherical k-means (F7), the largest first: their images, those near the centroid first.

    Raises UserError for fewer images than clusters.
    """
    count = len(embedded.features)
    if count < num_clusters:
        message = f"{count} images are too few for {num_clusters} clusters"
        raise UserError(f"{message}; give more images")
    unit = torch.from_numpy(embedded.features)
    means = spherical_kmeans(unit, num_clusters, Stream(seed).child("centroids").generator())
    cosines = (unit * means.centroids[means.assignments]).sum(1)
    ranked = cosines.argsort(descending=True, stable=True)
    largest_first = means.counts.argsort(descending=True, stable=True).tolist()
    members = [ranked[means.assignments[ranked] == cluster].numpy() for cluster in largest_first]
    return [rows for rows in members if len(rows)]


def clusters(embedded: EmbeddedImages, *, seed: int) -> Gallery:
    """A row a cluster of unit features, the largest first: the images nearest to its centroid.

    A label says how many images a cluster has and, where there are classes, the share of the most frequent one.
    """
    found = grouped(embedded, _CLUSTERS, seed)
    tiles = np.full((len(found), _NEAREST, embedded.size, embedded.size, 3), MID_GREY, np.uint8)
    transform = EvaluationTransform(embedded.size)
    for row, members in zip(tiles, found, strict=True):
        row[: len(members)] = tiles_of(embedded.source, members[:_NEAREST].tolist(), transform)
    return Gallery(tiles, labels=[_described(embedded.source, members) for members in found])


def _described(source: Source, members: NDArray[np.int64]) -> str:
    """The size of a cluster and, if there are labels, its purity; two lines."""
    names = [class_of(source, place) for place in members]
    if not any(names):
        return f"{len(members):,} images"
    most = max(sorted(set(names)), key=names.count)
    return f"{len(members):,} images\n{100 * names.count(most) / len(names):.0f} % {most}"
