"""The command and the recipes of this package are found through entry points."""

from __future__ import annotations

import subprocess
import sys

from hexa import recipes


def test_help_lists_the_command_without_importing_the_package() -> None:
    code = "import sys; from hexa import cli; cli.build_parser('')[0].print_help(); print(list(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "reproduce" in said.partition("options:")[0]
    assert not {"hexa_paper", "torch", "pydantic"} & set(eval(said.splitlines()[-1]))


def test_recipes_of_the_paper_are_among_all() -> None:
    assert {"imagenet-hexa-moco-200", "imagenet-dino", "ablate-moco"} <= set(recipes.names())
