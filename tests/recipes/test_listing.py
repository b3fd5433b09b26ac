"""The list of recipes that is read without importing torch."""

from __future__ import annotations

from hexa import recipes
from hexa.recipes import listing
from hexa.recipes.modifiers import MODIFIERS


def test_recipe_listing() -> None:
    """The files agree with the recipes; `python -m docs.listing` updates them."""
    listed = listing.read()
    assert listed.complete
    assert listed.modifiers == MODIFIERS
    assert listed.recipes == recipes.describe()
