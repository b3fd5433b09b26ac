"""The list of recipes that is read without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexa import recipes
from hexa.recipes import listing
from hexa.recipes.modifiers import MODIFIERS

SLOW = ("torch", "torchvision", "timm", "numpy", "sklearn", "scipy")


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules of these names that refuse to be imported."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in SLOW:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is imported')\n")
    return folder


def test_recipe_listing() -> None:
    """The files agree with the recipes; `python -m docs.listing` updates them."""
    listed = listing.read()
    assert listed.complete
    assert listed.modifiers == MODIFIERS
    assert listed.recipes == recipes.describe()


@pytest.mark.parametrize("command", ["recipes moco", "pretrain cifar10-moco-v3", "recipes --json"])
def test_recipes_without_torch(command: str, blocked: Path) -> None:
    """Listing recipes and refusing a mistyped name import nothing slow."""
    path = os.pathsep.join([str(blocked), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "hexa", *command.split()],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (2 if "pretrain" in command else 0)
    assert "cifar10-moco-v2" in done.stdout + done.stderr
