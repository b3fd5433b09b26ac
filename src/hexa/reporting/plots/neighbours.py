"""Which images a trained backbone finds similar: nearest neighbours, and the most typical images of clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hexa.config import UserError
from hexa.data import Source
from hexa.data.sources.source import Subset
from hexa.data.views.evaluation import EvaluationTransform
from hexa.evaluation.features import extract
from hexa.evaluation.split import draw_images
from hexa.ops.kmeans import spherical_kmeans
from hexa.reporting.gallery import tiles_of
from hexa.reporting.pictures import MID_GREY, Gallery
from hexa.reporting.style import COLOURS
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

LIMIT = 5000
"""Images that are embedded, drawn at random from larger sources."""
_SAME = COLOURS[0]
_OTHER = COLOURS[1]


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
        features, _, positions = extract(
            backbone, some, device=precisions.pick_device("auto"), progress=progress
        )
        return cls(
            functional.normalize(features, dim=1).numpy(),
            Subset(some, positions.numpy()),
            backbone.image_size,
        )

    def tiles(self, places: Sequence[int]) -> NDArray[np.uint8]:
        """Images as the backbone sees them, uint8 [K, S, S, 3]."""
        return tiles_of(self.source, places, EvaluationTransform(self.size))


def class_of(source: Source, place: int) -> str:
    """The name of the class of the image at this place; empty where it has none, or several."""
    return (
        ""
        if source.classes is None or source.classes[place] < 0
        else class_name(source, source.classes[place])
    )


def class_name(source: Source, label: int) -> str:
    """The name of a class; its number where classes have no names."""
    return source.class_names[label] if source.class_names else str(label)


def nearest(features: NDArray[np.float32], queries: Sequence[int], k: int) -> NDArray[np.int64]:
    """The k images whose unit features have the largest cosine with each query's, itself left out; [Q, k]."""
    similarity = features[list(queries)] @ features.T  # [Q, N]
    similarity[np.arange(len(queries)), list(queries)] = -np.inf
    return np.argsort(-similarity, axis=1, kind="stable")[:, :k]


def nearest_neighbours(
    embedded: EmbeddedImages, *, num_queries: int = 6, k: int = 8, seed: int = 0
) -> Gallery:
    """A row a query image: itself, then its k nearest by cosine; framed by whether they are of its class, if known."""
    count = len(embedded.features)
    if count < k + 1:
        raise UserError(f"{count} images are too few for {k} neighbours; give more images")
    queries = torch.randperm(count, generator=Stream(seed).child("queries").generator())[
        :num_queries
    ].tolist()
    found = nearest(embedded.features, queries, k)
    rows = [[query, *nearby] for query, nearby in zip(queries, found.tolist(), strict=True)]
    names = [[class_of(embedded.source, place) for place in row] for row in rows]
    cosines = [embedded.features[row[1:]] @ embedded.features[row[0]] for row in rows]
    tiles = np.stack([embedded.tiles(row) for row in rows])
    heads = ("query", *map(str, range(1, k + 1)))
    captions = [("", *(f"{cosine:.2f}" for cosine in row)) for row in cosines]
    frames = [
        ("", *(_SAME if name == own else _OTHER for name in others)) for own, *others in names
    ]
    return Gallery(
        tiles, heads, captions, [own for own, *_ in names], frames if names[0][0] else ()
    )


def grouped(embedded: EmbeddedImages, num_clusters: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Clusters of spherical k-means (F7), the largest first: their images, those near the centroid first.

    Raises UserError for fewer images than clusters.
    """
    if len(embedded.features) < num_clusters:
        raise UserError(
            f"{len(embedded.features)} images are too few for {num_clusters} clusters; give more images"
        )
    unit = torch.from_numpy(embedded.features)
    means = spherical_kmeans(unit, num_clusters, Stream(seed).child("centroids").generator())
    ranked = (
        (unit * means.centroids[means.assignments]).sum(1).argsort(descending=True, stable=True)
    )
    largest_first = means.counts.argsort(descending=True, stable=True).tolist()
    members = [ranked[means.assignments[ranked] == cluster].numpy() for cluster in largest_first]
    return [rows for rows in members if len(rows)]


def clusters(
    embedded: EmbeddedImages, *, num_clusters: int = 8, k: int = 9, seed: int = 0
) -> Gallery:
    """A row a cluster of unit features, the largest first: the k images nearest to its centroid.

    A label says how many images a cluster has and, where there are classes, the share of the most frequent one.
    """
    found = grouped(embedded, num_clusters, seed)
    tiles = np.full((len(found), k, embedded.size, embedded.size, 3), MID_GREY, np.uint8)
    for row, members in zip(tiles, found, strict=True):
        row[: len(members)] = embedded.tiles(members[:k].tolist())
    return Gallery(tiles, labels=[_described(embedded, members) for members in found])


def _described(embedded: EmbeddedImages, members: NDArray[np.int64]) -> str:
    """How many images a cluster has and, where there are labels, how pure it is; two lines."""
    names = [class_of(embedded.source, place) for place in members]
    if not any(names):
        return f"{len(members):,} images"
    most = max(sorted(set(names)), key=names.count)
    return f"{len(members):,} images\n{100 * names.count(most) / len(names):.0f} % {most}"
