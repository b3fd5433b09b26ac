"""Nearest neighbours and clusters of a backbone, against naive ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from hexa import recipes
from hexa.config import UserError
from hexa.data import open_source
from hexa.reporting.pictures import MID_GREY
from hexa.reporting.plots.neighbours import (
    EmbeddedImages,
    class_of,
    clusters,
    grouped,
    nearest,
    nearest_neighbours,
)
from hexa.runtime.random import Stream
from hexa.weights.pretrained import random_backbone


@pytest.fixture(scope="module")
def embedded() -> EmbeddedImages:
    experiment = recipes.get("digits-moco-v2")
    return EmbeddedImages.of(
        random_backbone(experiment.network, 16, 0), open_source("digits", "train"), limit=300
    )


def test_neighbours_are_those_of_scikit_learn(embedded: EmbeddedImages) -> None:
    queries = [3, 77, 250]
    oracle = NearestNeighbors(n_neighbors=6, metric="cosine").fit(embedded.features)
    expected = oracle.kneighbors(embedded.features[queries], return_distance=False)[:, 1:]
    assert nearest(embedded.features, queries, 5).tolist() == expected.tolist()


def test_frames_tell_the_query_s_class_from_others(embedded: EmbeddedImages) -> None:
    drawn = nearest_neighbours(embedded, num_queries=4, k=5)
    order = torch.randperm(300, generator=Stream(0).child("queries").generator())[:4].tolist()
    found = nearest(embedded.features, order, 5)
    for row, query in enumerate(order):
        assert drawn.labels[row] == class_of(embedded.source, query)
        assert np.array_equal(drawn.tiles[row], embedded.tiles([query, *found[row]]))
        for place, neighbour in enumerate(found[row], start=1):
            same = class_of(embedded.source, query) == class_of(embedded.source, neighbour)
            assert drawn.frames[row][place] == ("#0072b2" if same else "#d55e00")
            assert (
                drawn.captions[row][place]
                == f"{embedded.features[query] @ embedded.features[neighbour]:.2f}"
            )


def test_clusters_hold_every_image_once_where_it_is_near(embedded: EmbeddedImages) -> None:
    found = grouped(embedded, 5)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(embedded.features)))
    middles = np.stack([embedded.features[rows].mean(0) for rows in found])
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    own = np.empty(len(embedded.features), dtype=np.int64)
    for number, rows in enumerate(found):
        own[rows] = number
        cosines = embedded.features[rows] @ middles[number]
        assert cosines[: len(rows) // 2].mean() > cosines[len(rows) // 2 :].mean(), (
            "the most typical come first"
        )
    assert (
        (embedded.features @ middles.T).argmax(1) == own
    ).mean() > 0.9  # k-means stops before it stands still


def test_clusters_tell_their_size_and_their_commonest_class(embedded: EmbeddedImages) -> None:
    drawn = clusters(embedded, num_clusters=5, k=200)
    expected = []
    for members, tiles in zip(grouped(embedded, 5), drawn.tiles, strict=True):
        names = Counter(class_of(embedded.source, place) for place in members)
        expected.append(
            (f"{len(members)} images", f"{100 * names.most_common(1)[0][1] / len(members):.0f} %")
        )
        assert np.array_equal(tiles[: len(members)], embedded.tiles(members.tolist()))
        assert (tiles[len(members) :] == MID_GREY).all()
    shown = [label.split("\n") for label in drawn.labels]
    assert [(size, share.rpartition(" ")[0]) for size, share in shown] == expected
    assert [int(size.split()[0]) for size, _ in shown] == sorted(
        (int(size.split()[0]) for size, _ in shown)
    )[::-1]


def test_too_few_images_are_one_line(embedded: EmbeddedImages) -> None:
    few = EmbeddedImages(embedded.features[:4], embedded.source, embedded.size)
    with pytest.raises(UserError, match="4 images are too few for 8 neighbours"):
        nearest_neighbours(few)
    with pytest.raises(UserError, match="too few for 8 clusters"):
        clusters(few)
