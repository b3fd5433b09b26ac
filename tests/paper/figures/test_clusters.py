"""Clusters of the features of a backbone, against naive ones."""

from __future__ import annotations

import numpy as np
import pytest

from hexa import recipes
from hexa.config import UserError
from hexa.data import open_source
from hexa.weights.pretrained import random_backbone
from hexa_paper.figures.clusters import EmbeddedImages, clusters, grouped


@pytest.fixture(scope="module")
def embedded() -> EmbeddedImages:
    experiment = recipes.get("digits-moco-v2")
    return EmbeddedImages.of(
        random_backbone(experiment.network, 16, 0), open_source("digits", "train"), limit=300
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


def test_too_few_images_are_one_line(embedded: EmbeddedImages) -> None:
    few = EmbeddedImages(embedded.features[:4], embedded.source, embedded.size)
    with pytest.raises(UserError, match="too few for 8 clusters"):
        clusters(few, seed=0)
