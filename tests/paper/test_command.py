"""The command and the recipes of this package are found through entry points."""

from __future__ import annotations

import subprocess
import sys

from hexa import recipes


def test_help_without_torch() -> None:
    """Help lists the commands without importing torch."""
    code = "import sys; from hexa import cli; cli.build_parser('')[0].print_help(); print(list(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    first = {line.split()[0] for line in said.splitlines() if line.strip()}
    assert {"benchmark", "figure", "reproduce"} <= first
    assert not {"torch", "pydantic"} & set(eval(said.splitlines()[-1]))


def test_other_wing_imports() -> None:
    """A command of the other wing does not import this one."""
    code = (
        "import sys; from hexa import cli; cli.build_parser('pretrain'); print(list(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hexa_paper" not in eval(said.stdout)


def test_paper_recipe_names() -> None:
    """Recipes of the paper are among all."""
    assert {"imagenet-hexa-moco-200", "imagenet-dino", "ablate-moco"} <= set(recipes.names())
