"""Lists recipes from files in the installed packages, without importing torch.

`python -m docs.listing` in the repository updates the files.
"""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from hexa import recipes
from hexa.entry_points import added
from hexa.recipes import RECIPES

#: Name of the file with the rows of `hexa.recipes.describe`; the file of hexa also has the modifiers.
LISTED = "recipes.json"


@dataclass(frozen=True)
class Listing:
    """The contents of the files."""

    recipes: list[dict[str, Any]]
    """Rows of `hexa.recipes.describe`."""
    modifiers: dict[str, str]
    """Descriptions of the modifiers, by name without the plus."""
    complete: bool
    """True if every installed package with recipes has such a file."""

    @property
    def names(self) -> list[str]:
        """Names of the recipes."""
        return [row["name"] for row in self.recipes]


@functools.cache
def read() -> Listing:
    """Read the files of all installed packages with recipes."""
    packages = {"hexa", *(entry.module.partition(".")[0] for entry in added(RECIPES))}
    contents = []
    for package in sorted(packages):
        # a package may have no such file, or fail to import
        with suppress(Exception):
            contents.append(json.loads((files(package) / LISTED).read_text("utf-8")))
    rows = [row for content in contents for row in content["recipes"]]
    rows.sort(key=lambda row: str(row["name"]))
    modifiers = contents[0].get("modifiers", {})
    return Listing(rows, modifiers, complete=len(contents) == len(packages))


def names() -> list[str]:
    """Return the names of all recipes; recipes are imported only if a package has no such file."""
    listed = read()
    return listed.names if listed.complete else recipes.names()
