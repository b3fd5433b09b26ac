"""Clusters of a backbone's features: who is shown, in which order, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hexa import experiment as experiments
from hexa.config import UserError
from hexa.experiment import override
from hexa.reporting.clusters import clusters
from hexa.reporting.gallery import MID_GREY, Gallery
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.reporting.test_visualize import tiny


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose backbone is untrained; clusters tell digits apart somewhat all the same."""
    experiment = override(tiny(), {"data": "digits"})
    folder = tmp_path / "run"
    folder.mkdir()
    experiments.dump(experiment, folder / "config.yaml")
    save_backbone(random_backbone(experiment.network, experiment.views.size, 0), folder / "backbone.safetensors")
    return folder


def test_rows_are_clusters_with_their_size_and_commonest_class(run: Path, tmp_path: Path) -> None:
    made = Gallery.load(clusters(run, None, tmp_path / "clusters.png"))
    assert len(made.columns) == 8
    sizes = [int(text.split(" ")[0]) for text in made.columns[0].captions]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 500
    assert all("% " in text for text in made.columns[0].captions)
    tiles = [tile for column in made.columns for tile in column.tiles if not (tile == MID_GREY).all()]
    # no image is in two clusters
    assert len({tile.tobytes() for tile in tiles}) == len(tiles)


def test_neighbours_in_a_row_are_nearer_than_those_of_another(run: Path, tmp_path: Path) -> None:
    """The features are computed again from the pictures: a row's images are more alike than images of other rows."""
    made = Gallery.load(clusters(run, None, tmp_path / "clusters.png"))
    backbone = load_backbone(run)
    tiles = torch.from_numpy(np.stack([column.tiles for column in made.columns], 1))  # [clusters, 8, S, S, 3]
    full = [row for row in range(len(tiles)) if not (tiles[row, -1] == MID_GREY).all()]
    with torch.no_grad():
        features = backbone(tiles[full].flatten(0, 1).permute(0, 3, 1, 2).float() / 255)
    unit = torch.nn.functional.normalize(features, dim=1)
    cosines = (unit @ unit.T).view(len(full), 8, len(full), 8).mean((1, 3))
    assert (cosines.diagonal() == cosines.max(1).values).all()


def test_a_run_without_backbone_says_how_to_get_one(run: Path, tmp_path: Path) -> None:
    (run / "backbone.safetensors").unlink()
    with pytest.raises(UserError, match=r"no backbone\.safetensors.*hexa resume"):
        clusters(run, None, tmp_path / "clusters.png")
