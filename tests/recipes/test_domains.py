"""Domains: the fields that they set, which a user's fields override."""

from __future__ import annotations

import pytest
import torch

from hexa import recipes
from hexa.cli import declare
from hexa.data.views.making import Views
from hexa.recipes import domains
from hexa.recipes.experiment import override
from hexa.runtime.random import Stream


def test_domain_names() -> None:
    """Domains are not recipes, and the help names them."""
    assert not set(domains.NAMES) & set(recipes.names())
    assert all(name in declare.DOMAINS for name in domains.NAMES)
    assert domains.changes("photos") == {}


@pytest.mark.parametrize("name", domains.NAMES)
@pytest.mark.parametrize("recipe", ["digits-moco-v2", "cifar10-dino+small", "cifar10-infomin"])
def test_domain_recipe_fit(name: str, recipe: str) -> None:
    """Every domain fits every kind of recipe."""
    plain = recipes.get(recipe)
    changes = domains.changes(name)
    changed = override(plain, changes)
    assert override(changed, changes) == changed
    assert (changed == plain) == (name == "photos")


@pytest.mark.parametrize("name", ["microscopy", "medical-grey", "documents"])
def test_greyscale_domain_views(name: str) -> None:
    """Grey images stay grey, and colours are not changed."""
    recipe = recipes.get("cifar10-infomin")
    views = override(recipe, domains.changes(name)).views
    assert views.saturation == 0
    assert views.hue == 0
    assert views.randaugment_ops == 0
    grey = torch.randint(0, 256, (32, 1, 40, 40), dtype=torch.uint8)
    images = grey.expand(-1, 3, -1, -1)
    for crops in Views(views)(images, Stream(0)):
        expected = crops[:, :1].expand_as(crops)
        torch.testing.assert_close(crops, expected, atol=1e-5, rtol=0)


def test_user_field_precedence() -> None:
    """Fields that a user sets override those of the domain."""
    changed = domains.changes("histology", ["views.stain", "batch_size"])
    assert "views.stain" not in changed
    assert changed["views.magnification"] == [0.7, 1.4]
    scaled = domains.changes("histology", ["views.scale"])
    assert "views.magnification" not in scaled
