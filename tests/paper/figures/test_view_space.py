"""View space, and every figure from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hexa import cli, recipes
from hexa.config import UserError
from hexa.recipes.experiment import Experiment, override
from hexa.run.visualize import Look
from hexa_paper.figures.figure import short_name
from hexa_paper.figures.view_space import embed_views, partners, view_space
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
