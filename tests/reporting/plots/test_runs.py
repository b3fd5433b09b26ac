"""Figures of runs and backbones: the numbers behind them against naive ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from hexa import cli, recipes
from hexa.config import UserError
from hexa.data import open_source
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.pictures import MID_GREY
from hexa.reporting.plots.neighbours import (
    EmbeddedImages,
    class_of,
    clusters,
    grouped,
    nearest,
    nearest_neighbours,
)
from hexa.run.figure import short_name
from hexa.run.view_space import embed_views, partners, view_space
from hexa.run.visualize import Look
from hexa.runtime.random import Stream
from hexa.weights.pretrained import random_backbone
from tests.conftest import Says
from tests.modules import unchanged

TINY = {
    "network.widths": [4, 8],
    "batch_size": 32,
    "training.device": "cpu",
    "training.precision": "fp32",
}


def tiny(recipe: str = "digits-hexa-moco", **changes: object) -> Experiment:
    return override(recipes.get(recipe), TINY | changes)


@pytest.fixture(scope="module")
def moco() -> Look:
    return Look.at(tiny(**{"method.bn_groups": 2, "method.queue_size": 64}), "digits")


@pytest.fixture(scope="module")
def embedded() -> EmbeddedImages:
    experiment = recipes.get("digits-moco-v2")
    return EmbeddedImages.of(
        random_backbone(experiment.network, 16, 0), open_source("digits", "train"), limit=300
    )


# -- view space -----------------------------------------------------------------------------------------------------


def test_the_partner_of_a_mixed_view_is_read_off_its_pixels() -> None:
    clean = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    permutation = torch.tensor([3, 0, 5, 1, 2, 4])
    mixed = clean.clone()
    for row in range(5):  # nothing is pasted into the last
        mixed[row, :, 2:6, row : row + 3] = clean[permutation[row], :, 2:6, row : row + 3]
    assert partners(clean, mixed).tolist() == [3, 0, 5, 1, 2, 5]


def attacked(look: Look, radius: float) -> Look:
    fields = {f"hard_examples.adversarial.{name}": radius for name in ("epsilon", "step_size")}
    return replace(look, experiment=override(look.experiment, fields))


def test_view_space_is_a_projection_of_the_embeddings_and_changes_nothing(moco: Look) -> None:
    with unchanged(moco.method):
        space, moved = (
            embed_views(attacked(moco, radius), num_images=3, num_views=5) for radius in (0.0, 8.0)
        )
    assert space.image.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert space.adversarial == pytest.approx(space.clean)  # an attack of radius 0 moves nothing
    everything = np.concatenate([space.clean, space.adversarial, space.mixed])
    assert everything.mean(0) == pytest.approx([0, 0], abs=1e-6)  # principal components
    assert everything[:, 0].var() >= everything[:, 1].var()
    assert abs(np.corrcoef(everything.T)[0, 1]) < 1e-6
    assert np.abs(moved.adversarial - moved.clean).max() > 1e-3


def test_markers_tell_the_three_kinds_apart(moco: Look) -> None:
    space = embed_views(moco, num_images=3, num_views=5)
    (ax, *insets) = (figure := view_space(space)).axes
    assert len(insets) == 0 or len(insets) == 3
    drawn = np.concatenate([np.asarray(found.get_offsets()) for found in ax.collections])
    for points in (space.clean, space.adversarial[:3]):
        assert all((np.abs(drawn - point).sum(1) < 1e-9).any() for point in points)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "clean view",
        "adversarial view",
        "mixed view",
    ]
    assert "principal component" in ax.get_xlabel()
    assert figure.get_figwidth() > 5


def test_view_space_refuses_what_it_cannot_show(moco: Look) -> None:
    with pytest.raises(UserError, match="can be told apart"):
        embed_views(moco, num_images=40)
    changes = {
        "method.name": "jigsaw",
        "hard_examples.adversarial": None,
        "views.num_views": 1,
        "views.size": 24,
    }
    puzzles = replace(moco, experiment=tiny(**changes))
    with pytest.raises(UserError, match="not for jigsaw"):
        embed_views(puzzles)


# -- features -------------------------------------------------------------------------------------------------------


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


# -- the command --------------------------------------------------------------------------------------


def test_every_kind_from_the_command_line(tmp_path: Path) -> None:
    for kind, of in (
        ("hard-examples", "digits-hexa-moco"),
        ("view-space", "digits-hexa-moco"),
        ("neighbours", "random:small-resnet-8-8-16"),
        ("clusters", "random:small-resnet-8-8-16"),
    ):
        out = tmp_path / f"{kind}.svg"
        assert cli.main(["figure", kind, of, "--data", "digits#test", "--out", str(out)]) == 0
        assert out.stat().st_size > 10_000


def test_mistakes_of_the_command_are_one_line(tmp_path: Path, says: Says) -> None:
    out = str(tmp_path / "a.png")
    for words, message in (
        (["view-spaces", "digits-hexa-moco", "--out", out], "did you mean 'view-space'"),
        (["view-space", "digits-hexa-mocco", "--out", out], "neither a run folder nor a recipe"),
        (["view-space", "runs/mistyped", "--out", out], "run folder not found"),
        (["neighbours", "random:digits-moco-v2", "--out", out], "--data SOURCE"),
        (
            ["clusters", "nowhere.safetensors", "--data", "digits", "--out", out],
            "nowhere.safetensors",
        ),
        (["view-space", "digits-hexa-moco", "--out", out + ".gif"], ".png or .svg"),
    ):
        *stages, said = says("figure", *words, status=2).err.splitlines()
        assert message in said
        assert stages in ([], ["opening the images …"])
    assert not (tmp_path / "a.png").exists()


def test_sources_have_short_names() -> None:
    names = {"digits": "digits", "parquet:/data/cifar10": "cifar10", "folder:photos/": "photos"}
    assert {name: short_name(name) for name in names} == names
